"""Searching documents: by the words they share with a query, by meaning, or by both.

Keep: a search sees the files as they are now; it names a passage that no longer is, never.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from chatapp.passages.cutting import SIZE
from chatapp.passages.files import DocumentsError, list_files
from chatapp.passages.index import Index, Passage, Progress
from chatapp.paths import cache_dir
from chatapp.userfiles import quoted, suggestion

# Help and completion should not wait for numpy.
if TYPE_CHECKING:
    from chatapp.engine.model import LanguageModel
    from chatapp.prompting.selection.similarity import Index as Similarity

Method = Literal["bm25", "encoder", "both"]
METHODS: tuple[Method, ...] = get_args(Method)

_FORMAT = 1
"""Of the index's file; raised with its tables, or with what becomes of a text."""

_DEPTH = 50
"""How far down a ranking is looked at where two are merged."""

_DAMPING = 60
"""The constant of reciprocal rank fusion, as in its paper."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a search goes through. left_out: files without passages, counted by reason."""

    files: int
    passages: int
    left_out: Counter[str]

    def __str__(self) -> str:
        counted = ", ".join(f"{count} {reason}" for reason, count in sorted(self.left_out.items()))
        words = f"{self.passages:,} passages of {self.files:,} files"
        return f"{words}; left out: {counted}" if counted else words


class Documents:
    """The passages of some files and folders, to be searched.

    paths: files, folders and patterns. method: "bm25", "encoder" or "both", and after a colon
        the encoder of `fewshot.encoders`, as "both:minilm"; without one the best installed.
    model: for the encoder "lm". size: of a passage, in characters.
    Raises DocumentsError for a method there is not.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        method: str = "bm25",
        size: int = SIZE,
        model: "LanguageModel | None" = None,
        progress: Progress | None = None,
    ) -> None:
        self.paths = tuple(paths)
        self._method, self._encoder_name = method_and_encoder(method)
        self._model = model
        self._progress = progress
        name = json.dumps([_FORMAT, size, sorted(self._absolute())])
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16)
        self._index = Index(cache_dir() / "documents" / f"{digest.hexdigest()}.sqlite", size)
        self._similarity: tuple[list[str], list[int], Similarity] | None = None

    def renew(self) -> Coverage:
        """Read what has changed. Raises DocumentsError when there is nothing to search."""
        listing = list_files(self.paths)
        left_out = listing.left_out + self._index.renew(listing.files, self._progress)
        coverage = Coverage(*self._index.count(), left_out)
        if not coverage.passages:
            counted = f" ({coverage})" if left_out else ""
            raise DocumentsError(f"{', '.join(self.paths)}: there is no text to search{counted}")
        return coverage

    def search(self, query: str, limit: int) -> list[Passage]:
        """At most `limit` passages, the nearest to the query first.

        A score is BM25, the cosine of embeddings, or for "both" the sum over the two rankings
        of 1 / (60 + rank): reciprocal rank fusion (Cormack, Clarke and Büttcher 2009).
        Raises DocumentsError, and ModelError when the encoder cannot be had.
        """
        self.renew()
        if self._method == "bm25":
            scores = self._index.by_words(query, limit)
        elif self._method == "encoder":
            scores = self._by_meaning(query, limit)
        else:
            rankings = [self._index.by_words(query, _DEPTH), self._by_meaning(query, _DEPTH)]
            scores = fused([[identity for identity, _ in ranking] for ranking in rankings])
        return self._index.passages(scores[:limit])

    def _by_meaning(self, query: str, limit: int) -> list[tuple[int, float]]:
        from chatapp.prompting.selection.similarity import ranked

        identities, texts = self._index.texts()
        if self._similarity is None or self._similarity[:2] != (texts, identities):
            self._similarity = texts, identities, self._encoded(texts)
        scores = self._similarity[2].scores(query)
        best = [row for row, _ in zip(ranked(scores, limit), range(limit), strict=False)]
        return [(identities[row], float(scores[row])) for row in best if scores[row] > 0]

    def _encoded(self, texts: Sequence[str]) -> "Similarity":
        from chatapp.fewshot.encoders import load_encoder
        from chatapp.prompting.selection.select import Select
        from chatapp.prompting.selection.similarity import DenseIndex, TfidfIndex

        select = Select(encoder=self._encoder_name)
        encoder = load_encoder(select, self._model, self._progress)
        if encoder is None:
            return TfidfIndex(texts)
        return DenseIndex(texts, encoder, select.metric)

    def _absolute(self) -> list[str]:
        """The paths as they would be named from anywhere."""
        from os.path import abspath, expanduser

        return [abspath(expanduser(path)) for path in self.paths]


def method_and_encoder(value: str) -> tuple[Method, str | None]:
    """`both` or `both:minilm`: how to search, and by which encoder. Raises DocumentsError."""
    name, colon, encoder = value.partition(":")
    method = next((known for known in METHODS if known == name), None)
    if method is None:
        raise DocumentsError(
            f"{quoted(value)}: is no way to search documents{suggestion(name, METHODS)}"
        )
    if colon and (method == "bm25" or not encoder):
        raise DocumentsError(f"{quoted(value)}: an encoder stands after encoder: or both:")
    return method, encoder or None


def fused(rankings: Sequence[Sequence[int]]) -> list[tuple[int, float]]:
    """Rankings merged by reciprocal rank fusion, the best first; equal ones by identity."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, identity in enumerate(ranking, 1):
            scores[identity] = scores.get(identity, 0.0) + 1 / (_DAMPING + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
