"""Choosing demonstrations: a pool and a query give indices into the pool, nearest first.

The invariant to keep: a selector sees the inputs of a pool, never what it should not know.
The outputs are no part of any index (only `Balanced` reads them, to draw evenly), and a pool
item that is the same as the query is never chosen for it.
"""

import random
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from chatapp.prompting.examples import Pool, normalise

Method = Literal["fixed", "random", "balanced", "bm25", "knn", "mmr", "vote"]
Order = Literal["nearest-first", "nearest-last", "shuffled"]
Metric = Literal["cosine", "euclidean"]
Pooling = Literal["mean", "cls"]

Scores = NDArray[np.float32]


class Select(BaseModel):
    """The [select] table of a prompt file: which demonstrations are shown, in which order.

    method: `fixed` takes the first k of the pool; `random` draws k for each query;
        `balanced` draws as many of each label; `bm25` ranks by BM25; `knn` takes the nearest
        by embedding (Liu et al. 2021); `mmr` weighs nearness against redundancy; `vote` asks
        no language model and takes the majority label of the k nearest.
    k: how many. order: how they are printed; None is `nearest-last` where there is a
        nearness, so that the best one stands next to the query, else as chosen.
    seed: of `random`, `balanced` and `shuffled`.
    encoder: what embeds texts for `knn`, `mmr` and `vote`; None is the best one installed.
    pooling: of a sentence encoder; None is its own. layer: of the encoder `lm`, counted from
        the last when negative. metric: what nearness is.
    relevance: the weight of nearness in `mmr`, from 0 to 1; the rest weighs redundancy.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    method: Method = "fixed"
    k: Annotated[int, Field(ge=0)] = 8
    order: Order | None = None
    seed: int = 0
    encoder: str | None = None
    pooling: Pooling | None = None
    layer: int = -1
    metric: Metric = "cosine"
    relevance: Annotated[float, Field(ge=0, le=1)] = 0.5


class Encoder(Protocol):
    """Texts to vectors. Equal fingerprints mean equal vectors for equal texts."""

    @property
    def fingerprint(self) -> str: ...

    def encode(self, texts: Sequence[str]) -> Scores:
        """One finite vector a text: float32, (texts, dimensions)."""
        ...


class Index(Protocol):
    """How similar a pool's inputs are to a text. Larger is nearer."""

    def scores(self, query: str) -> Scores:
        """The similarity of the query to every input: (inputs,)."""
        ...

    def between(self, row: int) -> Scores:
        """The similarity of one input to every input: (inputs,)."""
        ...


class Selector(Protocol):
    """Chooses demonstrations for a query."""

    def select(self, query: str, k: int) -> list[int]:
        """At most k indices into the pool, nearest first, without the query itself."""
        ...

    def similarities(self, query: str, indices: Sequence[int]) -> list[float | None]:
        """How near each index is to the query; None where the selector knows no nearness."""
        ...


class _Unranked:
    """A selector that knows no nearness."""

    def similarities(self, query: str, indices: Sequence[int]) -> list[float | None]:
        return [None] * len(indices)


@dataclass(frozen=True, slots=True)
class Fixed(_Unranked):
    """The first k of the pool, in its order."""

    pool: Pool

    def select(self, query: str, k: int) -> list[int]:
        return _others(range(len(self.pool)), self.pool, query, k)


@dataclass(frozen=True, slots=True)
class Random(_Unranked):
    """k drawn without replacement, by the seed and the query and nothing else.

    So the choice for a query does not depend on which queries came before it.
    """

    pool: Pool
    seed: int

    def select(self, query: str, k: int) -> list[int]:
        draw = _shuffled(range(len(self.pool)), _generator(self.seed, query))
        return _others(draw, self.pool, query, k)


class Balanced(_Unranked):
    """As many of each output as possible, drawn by the seed and the query.

    The outputs take turns, so that leaving out the last ones keeps the balance. Which output
    begins is drawn as well.
    """

    def __init__(self, pool: Pool, seed: int) -> None:
        self._pool = pool
        self._seed = seed
        self._rows: dict[str, list[int]] = {}
        for index, output in enumerate(pool.outputs):
            self._rows.setdefault(output, []).append(index)

    def select(self, query: str, k: int) -> list[int]:
        generator = _generator(self._seed, query)
        turns = [_shuffled(rows, generator) for rows in self._rows.values()]
        generator.shuffle(turns)
        return _others(_in_turn(turns), self._pool, query, k)


class Nearest:
    """The k most similar inputs: KATE (Liu et al. 2021) with an index of embeddings."""

    def __init__(self, pool: Pool, index: Index) -> None:
        self._pool = pool
        self._index = index
        self._last: tuple[str, Scores] | None = None

    def select(self, query: str, k: int) -> list[int]:
        return _others(_ranked(self._scores(query), k), self._pool, query, k)

    def similarities(self, query: str, indices: Sequence[int]) -> list[float | None]:
        scores = self._scores(query)
        return [float(scores[index]) for index in indices]

    def _scores(self, query: str) -> Scores:
        """Of the whole pool, kept until another query comes: it is asked for several times."""
        if self._last is None or self._last[0] != query:
            self._last = query, self._index.scores(query)
        return self._last[1]


class Diverse(Nearest):
    """Maximal marginal relevance (Carbonell and Goldstein 1998).

    Each next one has the highest relevance · similarity to the query
    - (1 - relevance) · highest similarity to those already chosen, among the nearest 4k
    or 50, whichever is more: further ones are different, but of no use.
    """

    def __init__(self, pool: Pool, index: Index, relevance: float = 0.5) -> None:
        super().__init__(pool, index)
        self._relevance = relevance

    def select(self, query: str, k: int) -> list[int]:
        near = np.array(super().select(query, max(4 * k, 50)), dtype=np.intp)
        nearness = self._scores(query)[near]
        redundancy = np.full(len(near), -np.inf, dtype=np.float32)
        left = np.ones(len(near), dtype=bool)
        chosen: list[int] = []
        while len(chosen) < k and left.any():
            penalty = redundancy if chosen else np.zeros_like(redundancy)
            value = self._relevance * nearness - (1 - self._relevance) * penalty
            best = int(np.argmax(np.where(left, value, -np.inf)))
            left[best] = False
            chosen.append(int(near[best]))
            redundancy = np.maximum(redundancy, self._index.between(chosen[-1])[near])
        return chosen


def build_selector(pool: Pool, select: Select, encoder: Encoder | None = None) -> Selector:
    """The selector that `select` describes; k is given anew with each query.

    encoder: what embeds texts for `knn`, `mmr` and `vote`; None is TF-IDF. For `vote` the
    selector chooses the voters (see `vote`).
    """
    if not len(pool):
        return Fixed(pool)
    match select.method:
        case "fixed":
            return Fixed(pool)
        case "random":
            return Random(pool, select.seed)
        case "balanced":
            return Balanced(pool, select.seed)
        case "bm25":
            return Nearest(pool, Bm25Index(pool.inputs))
    index: Index = (
        TfidfIndex(pool.inputs)
        if encoder is None
        else DenseIndex(pool.inputs, encoder, select.metric)
    )
    if select.method == "mmr":
        return Diverse(pool, index, select.relevance)
    return Nearest(pool, index)


def vote(pool: Pool, indices: Sequence[int]) -> str:
    """The majority output of these pool items, nearest first; in a tie the nearest's wins.

    What is reached without any language model, the baseline of every kNN result.
    Raises ValueError when there are no items.
    """
    votes = Counter(pool.outputs[index] for index in indices)
    if not votes:
        raise ValueError("a vote needs at least one example")
    # A counter keeps the order of first appearance, and max takes the first of equals.
    return max(votes, key=lambda output: votes[output])


def _others(ranked: Iterator[int] | range, pool: Pool, query: str, k: int) -> list[int]:
    """The first k whose input is not the same item as the query."""
    same = normalise(query)
    return list(islice((i for i in ranked if normalise(pool.inputs[i]) != same), k))


def _generator(seed: int, query: str) -> random.Random:
    return random.Random(f"{seed} {query}".encode("utf-8", "surrogatepass"))


def _shuffled(items: Sequence[int], generator: random.Random) -> Iterator[int]:
    """The items in random order (Fisher-Yates), drawn only as far as they are taken."""
    moved: dict[int, int] = {}
    for here in range(len(items)):
        there = generator.randrange(here, len(items))
        yield items[moved.get(there, there)]
        moved[there] = moved.get(here, here)


def _in_turn(turns: list[Iterator[int]]) -> Iterator[int]:
    while turns:
        for turn in list(turns):
            try:
                yield next(turn)
            except StopIteration:
                turns.remove(turn)


def _ranked(scores: Scores, k: int) -> Iterator[int]:
    """The indices by falling score, equal scores by rising index."""
    # The query itself may be among the first: a few more save the sorting of the rest.
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
    """What BM25 and TF-IDF count: case-folded words, and every other character by itself.

    Signs are kept because they tell one equation or query from another; no words are
    left out, because "who" and "how many" are what tells one question from another.
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

    def scores(self, query: str) -> Scores:
        known = [self._vocabulary[word] for word in _words(query) if word in self._vocabulary]
        scores: Scores = self._index.get_scores_from_ids(known)
        return scores

    def between(self, row: int) -> Scores:
        return self.scores(self._inputs[row])


class TfidfIndex:
    """Cosine similarity of TF-IDF vectors, without any download.

    A word that occurs f times in a text and in d of n texts weighs
    (1 + ln f) · (1 + ln((1 + n) / (1 + d))). Vectors have length 1. Each word keeps the list
    of the texts that hold it, so that a query costs as much as its own words occur.
    """

    def __init__(self, inputs: Sequence[str]) -> None:
        self._inputs = inputs
        self._vocabulary: dict[str, int] = {}
        words, counts, lengths = array("i"), array("i"), array("i")
        for text in inputs:
            found = Counter(_words(text))
            words.extend(self._vocabulary.setdefault(each, len(self._vocabulary)) for each in found)
            counts.extend(found.values())
            lengths.append(len(found))
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

    def scores(self, query: str) -> Scores:
        counts = Counter(word for word in _words(query) if word in self._vocabulary)
        word = np.array([self._vocabulary[each] for each in counts], dtype=np.intp)
        weight = (1 + np.log(np.array(list(counts.values())))) * self._rarity[word]
        scores = np.zeros(len(self._inputs), dtype=np.float32)
        for each, share in zip(word, weight / max(np.linalg.norm(weight), 1e-12), strict=True):
            here = slice(self._ends[each], self._ends[each + 1])
            # A text stands in the list of a word once, so += meets each row once.
            scores[self._rows[here]] += np.float32(share) * self._weights[here]
        return scores

    def between(self, row: int) -> Scores:
        return self.scores(self._inputs[row])


class DenseIndex:
    """Nearness of embeddings: their cosine, or their Euclidean distance with a minus."""

    def __init__(self, inputs: Sequence[str], encoder: Encoder, metric: Metric) -> None:
        self._encoder = encoder
        self._metric = metric
        # Inputs as columns: multiplied so, a vector meets them twice as fast.
        self._vectors = np.ascontiguousarray(self._encoded(inputs).T)
        self._squares = np.einsum("dn,dn->n", self._vectors, self._vectors)

    def _encoded(self, texts: Sequence[str]) -> Scores:
        vectors = self._encoder.encode(texts)
        if not np.isfinite(vectors).all():
            raise ValueError(
                f"the encoder {self._encoder.fingerprint} gives values that are not finite"
            )
        if self._metric == "cosine":
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(norms, np.float32(1e-12))
        return vectors

    def scores(self, query: str) -> Scores:
        return self._to(self._encoded([query])[0])

    def between(self, row: int) -> Scores:
        return self._to(self._vectors[:, row])

    def _to(self, vector: Scores) -> Scores:
        products: Scores = vector @ self._vectors
        if self._metric == "cosine":
            return products
        squares = self._squares - 2 * products + vector @ vector
        distances: Scores = -np.sqrt(np.maximum(squares, 0))
        return distances
