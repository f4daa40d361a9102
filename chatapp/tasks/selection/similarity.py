"""Similarity of texts, by shared words or by embeddings."""

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from chatapp.rows.examples import PromptError

Metric = Literal["cosine", "euclidean"]

Embeddings = NDArray[np.float32]
"""The vector of one text (dimensions,), or those of several (texts, dimensions)."""

Similarities = NDArray[np.float32]
"""How similar every input of a pool is to one text: (inputs,)."""


class Encoder(Protocol):
    """Maps texts to vectors. Equal fingerprints mean equal vectors for equal texts."""

    @property
    def fingerprint(self) -> str: ...

    def encode(self, texts: Sequence[str]) -> Embeddings:
        """One finite vector per text: float32, (texts, dimensions)."""
        ...

    def encode_tokens(self, texts: Sequence[str]) -> list[Embeddings]:
        """A vector for each token of each text: float32, (tokens, dimensions).

        Raises ModelError for an encoder that has none.
        """
        ...


class SimilarityIndex(Protocol):
    """The similarity of a pool's inputs to a text. Larger is nearer."""

    def scores(self, query: str) -> Similarities:
        """The similarity of the query to every input."""
        ...

    def between(self, row: int) -> Similarities:
        """The similarity of one input to every input."""
        ...


class CoveringIndex(SimilarityIndex, Protocol):
    """An index that also compares tokens."""

    def recalls(self, query: str, rows: Sequence[int]) -> Similarities:
        """How well each input covers each token of the query: (rows, tokens), not negative.

        The mean of a row is the recall of BERTScore (Zhang et al. 2020).
        """
        ...


def ranked(scores: Similarities, k: int) -> Iterator[int]:
    """The indices by falling score, equal scores by rising index; callers mostly take k."""
    # The query itself may be among the first: a few extra ones save sorting the rest.
    few = min(2 * k + 8, len(scores))
    first: NDArray[np.intp] = np.empty(0, dtype=np.intp)
    if few:
        threshold = np.partition(scores, len(scores) - few)[len(scores) - few]
        first = np.flatnonzero(scores >= threshold)
        first = first[np.argsort(-scores[first], kind="stable")]
        yield from first.tolist()
    yield from np.argsort(-scores, kind="stable")[len(first) :].tolist()


_WORD = re.compile(r"\w+|[^\w\s]")


def _words(text: str) -> list[str]:
    """The terms of BM25 and TF-IDF: case-folded words, and every other character by itself.

    Signs stay because they distinguish equations and queries; no stop words are removed, because
    "who" and "how many" distinguish questions.
    """
    return _WORD.findall(text.casefold())


class Bm25Index:
    """BM25 as in Lucene (k1 = 1.5, b = 0.75), by the bm25s library."""

    def __init__(self, inputs: Sequence[str]) -> None:
        import bm25s

        self._inputs = inputs
        self._vocabulary: dict[str, int] = {}
        ids = [
            [self._vocabulary.setdefault(word, len(self._vocabulary)) for word in _words(text)]
            for text in inputs
        ]
        self._index = bm25s.BM25(backend="numpy")
        self._index.index((ids, self._vocabulary), create_empty_token=False, show_progress=False)

    def scores(self, query: str) -> Similarities:
        known = [self._vocabulary[word] for word in _words(query) if word in self._vocabulary]
        scores: Similarities = self._index.get_scores_from_ids(known)
        return scores

    def between(self, row: int) -> Similarities:
        return self.scores(self._inputs[row])


class TfidfIndex:
    """Cosine similarity of TF-IDF vectors, without any download.

    A word that occurs f times in a text and in d of n texts weighs (1 + ln f) · (1 + ln((1 + n) /
    (1 + d))). Vectors have length 1. Each word has a list of the texts that contain it, so the cost
    of a query is the number of occurrences of its words.
    """

    def __init__(self, inputs: Sequence[str]) -> None:
        self._inputs = inputs
        self._vocabulary: dict[str, int] = {}
        words, counts, lengths = array("i"), array("i"), array("i")
        for text in inputs:
            bag = Counter(_words(text))
            words.extend(self._vocabulary.setdefault(name, len(self._vocabulary)) for name in bag)
            counts.extend(bag.values())
            lengths.append(len(bag))
        word = np.asarray(words)
        row = np.repeat(np.arange(len(inputs), dtype=np.int32), lengths)
        frequency = np.bincount(word, minlength=len(self._vocabulary))
        self._rarity = (1 + np.log((1 + len(inputs)) / (1 + frequency))).astype(np.float32)
        weight = (1 + np.log(np.asarray(counts), dtype=np.float32)) * self._rarity[word]
        norm = np.sqrt(np.bincount(row, weight**2, minlength=len(inputs))).astype(np.float32)
        order = np.argsort(word, kind="stable")
        self._rows = row[order]
        self._weights = (weight / norm[row])[order]
        self._ends = np.concatenate([[0], np.cumsum(frequency)])

    def scores(self, query: str) -> Similarities:
        counts = Counter(word for word in _words(query) if word in self._vocabulary)
        ids = np.array([self._vocabulary[word] for word in counts], dtype=np.intp)
        weight = (1 + np.log(np.array(list(counts.values())))) * self._rarity[ids]
        scores = np.zeros(len(self._inputs), dtype=np.float32)
        for id, share in zip(ids, weight / max(np.linalg.norm(weight), 1e-12), strict=True):
            texts = slice(self._ends[id], self._ends[id + 1])
            # A text is in the list of a word once, so += meets each row once.
            scores[self._rows[texts]] += np.float32(share) * self._weights[texts]
        return scores

    def between(self, row: int) -> Similarities:
        return self.scores(self._inputs[row])

    def recalls(self, query: str, rows: Sequence[int]) -> Similarities:
        """A word is covered as far as it is rare in the pool, or not at all."""
        known = [word for word in dict.fromkeys(_words(query)) if word in self._vocabulary]
        ids = np.array([self._vocabulary[word] for word in known], dtype=np.intp)
        contained = [set(_words(self._inputs[row])) for row in rows]
        shared = [[word in words for word in known] for words in contained]
        covered: Similarities = np.array(shared, np.float32).reshape(len(rows), len(known))
        return covered * self._rarity[ids]


class DenseIndex:
    """Similarity of embeddings: their cosine, or their negative Euclidean distance.

    Raises PromptError for an encoder whose embeddings are not finite.
    """

    def __init__(self, inputs: Sequence[str], encoder: Encoder, metric: Metric) -> None:
        self._encoder = encoder
        self._metric = metric
        self._inputs = inputs
        self._tokens: dict[int, Embeddings] = {}
        # Inputs are columns, which makes the product with a vector twice as fast.
        self._vectors = np.ascontiguousarray(self._encoded(inputs).T)
        self._squares = np.einsum("dn,dn->n", self._vectors, self._vectors)

    def recalls(self, query: str, rows: Sequence[int]) -> Similarities:
        new = [row for row in rows if row not in self._tokens]
        ours, *theirs = self._encoder.encode_tokens([query, *(self._inputs[row] for row in new)])
        self._tokens |= {row: _unit(tokens) for row, tokens in zip(new, theirs, strict=True)}
        best = [(self._tokens[row] @ _unit(ours).T).max(axis=0, initial=0) for row in rows]
        return np.array(best, np.float32).reshape(len(rows), len(ours))

    def _encoded(self, texts: Sequence[str]) -> Embeddings:
        vectors = self._encoder.encode(texts)
        if not np.isfinite(vectors).all():
            raise PromptError(
                f"the encoder {self._encoder.fingerprint} gives values that are not finite"
            )
        if self._metric == "cosine":
            vectors = _unit(vectors)
        return vectors

    def scores(self, query: str) -> Similarities:
        return self._to(self._encoded([query])[0])

    def between(self, row: int) -> Similarities:
        return self._to(self._vectors[:, row])

    def _to(self, vector: Embeddings) -> Similarities:
        products: Similarities = vector @ self._vectors
        if self._metric == "cosine":
            return products
        squares = self._squares - 2 * products + vector @ vector
        distances: Similarities = -np.sqrt(np.maximum(squares, 0))
        return distances


def _unit(vectors: Embeddings) -> Embeddings:
    """Vectors of length 1; a vector of zeros stays."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Embeddings = vectors / np.maximum(norms, np.float32(1e-12))
    return scaled
