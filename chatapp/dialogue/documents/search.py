"""Searches documents by words, by meaning, or by both."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import abspath, expanduser
from typing import TYPE_CHECKING

from chatapp.common.paths import cache_dir
from chatapp.common.userfiles import Progress, no_progress
from chatapp.dialogue.documents.index import Index, Passage
from chatapp.dialogue.documents.reader import DocumentReader
from chatapp.tasks.files.documents import DocumentsError, DocumentSet

# Help and completion should not wait for numpy.
if TYPE_CHECKING:
    from chatapp.engine.model import LanguageModel
    from chatapp.tasks.selection.similarity import SimilarityIndex as Similarity

_FORMAT = 2
"""The version of the index's file; raise it when its tables or the cutting of texts change."""

_DEPTH = 50
"""Results of each ranking that are merged."""

_DAMPING = 60
"""The constant of reciprocal rank fusion, as in its paper."""


@dataclass(frozen=True, slots=True)
class SearchCoverage:
    """The extent of a search. left_out: files without passages, counted by reason."""

    files: int
    passages: int
    left_out: Counter[str]

    def __str__(self) -> str:
        counted = ", ".join(f"{count} {reason}" for reason, count in sorted(self.left_out.items()))
        words = f"{_counted(self.passages, 'passage')} of {_counted(self.files, 'file')}"
        return f"{words}; left out: {counted}" if counted else words


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


class Documents:
    """The passages of some files and folders.

    document_set: which, and how to search. model: for the encoder "lm".
    """

    def __init__(self, document_set: DocumentSet, model: "LanguageModel | None" = None) -> None:
        self.document_set = document_set
        self._method, self._encoder_name = document_set.method_and_encoder()
        self._model = model
        paths = sorted(abspath(expanduser(path)) for path in document_set.paths)
        name = json.dumps([_FORMAT, document_set.size, paths]).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(name, digest_size=16).hexdigest()
        self._index = Index(cache_dir() / "documents" / f"{digest}.sqlite", document_set.size)
        self._reader = DocumentReader()
        self._similarity: tuple[list[str], list[int], Similarity] | None = None

    def renew(self, progress: Progress | None = None) -> SearchCoverage:
        """Read changed files. Raises DocumentsError when there is nothing to search.

        progress: called often while files are found and read; an exception of it ends the reading.
        """
        report = progress or no_progress
        listing = self._reader.list_files(self.document_set.paths, lambda: report(0, 1))
        left_out = listing.left_out + self._index.renew(listing.files, self._reader, report)
        coverage = SearchCoverage(*self._index.count(), left_out)
        if not coverage.passages:
            counted = f" ({coverage})" if left_out else ""
            raise DocumentsError(
                f"{', '.join(self.document_set.paths)}: there is no text to search{counted}"
            )
        return coverage

    def search(self, query: str, progress: Progress | None = None) -> list[Passage]:
        """The passages nearest to the query, nearest first, up to the requested number.

        A score is BM25, the cosine of embeddings, or for "both" the sum over the two rankings of 1
        / (60 + rank): reciprocal rank fusion (Cormack, Clarke and Büttcher 2009). progress: also
        counts encoded texts; see `renew`. Raises DocumentsError, and ModelError when the encoder is
        not available.
        """
        self.renew(progress)
        limit = self.document_set.limit
        if self._method == "bm25":
            scores = self._index.by_words(query, limit)
        elif self._method == "encoder":
            scores = self._by_meaning(query, limit, progress)
        else:
            words = self._index.by_words(query, _DEPTH)
            meaning = self._by_meaning(query, _DEPTH, progress)
            scores = fused([[identity for identity, _ in ranking] for ranking in (words, meaning)])
        return self._index.passages(scores[:limit])

    def _by_meaning(
        self, query: str, limit: int, progress: Progress | None
    ) -> list[tuple[int, float]]:
        from chatapp.tasks.selection.similarity import ranked

        identities, texts = self._index.texts()
        if self._similarity is None or self._similarity[:2] != (texts, identities):
            self._similarity = texts, identities, self._encoded(texts, progress)
        scores = self._similarity[2].scores(query)
        best = [row for row, _ in zip(ranked(scores, limit), range(limit), strict=False)]
        return [(identities[row], float(scores[row])) for row in best if scores[row] > 0]

    def _encoded(self, texts: Sequence[str], progress: Progress | None) -> "Similarity":
        from chatapp.tasks.selection.encoders import load_encoder
        from chatapp.tasks.selection.select import Select
        from chatapp.tasks.selection.similarity import DenseIndex, TfidfIndex

        select = Select(encoder=self._encoder_name)
        encoder = load_encoder(select, self._model, progress)
        if encoder is None:
            return TfidfIndex(texts)
        return DenseIndex(texts, encoder, select.metric)


def fused(rankings: Sequence[Sequence[int]]) -> list[tuple[int, float]]:
    """Merge rankings by reciprocal rank fusion, the best first; equal ones by identity."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, identity in enumerate(ranking, 1):
            scores[identity] = scores.get(identity, 0.0) + 1 / (_DAMPING + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
