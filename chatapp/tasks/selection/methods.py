"""The table of built-in selection methods: classes whose attributes describe their use.

Prompt files, options, help, errors, plots and completion derive from METHODS.

Invariant: a selector sees only the inputs of a pool. No index contains outputs (only balanced
methods read them, to choose evenly), and an item equal to the query is never chosen for it.
"""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Protocol

from chatapp.common.userfiles import quoted, suggestion
from chatapp.rows.examples import Pool, PromptError, normalise

# Help and completion read the table, and should not wait for numpy.
if TYPE_CHECKING:
    from chatapp.tasks.selection.similarity import (
        CoveringIndex,
        Encoder,
        Metric,
        Similarities,
        SimilarityIndex,
    )


class SelectOptions(Protocol):
    """The keys of a [select] table that methods read; see `select.Select`."""

    @property
    def seed(self) -> int: ...
    @property
    def metric(self) -> "Metric": ...
    @property
    def relevance(self) -> float: ...
    @property
    def nearest(self) -> int: ...


class Selector(ABC):
    """Chooses demonstrations from a pool; the class describes the method.

    name: in prompt files and options. summary: for help: which examples it chooses. ranks: it
    computes similarity to the query. draws: it depends on the seed. A method that neither ranks nor
    draws chooses the same for every query. needs_encoder: it compares embeddings. needs_labels: the
    outputs must be labels. votes: the majority output of the chosen items is the answer, without a
    language model. baseline: the method whose vote an evaluation reports next to this one.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    ranks: ClassVar[bool] = False
    draws: ClassVar[bool] = False
    needs_encoder: ClassVar[bool] = False
    needs_labels: ClassVar[bool] = False
    votes: ClassVar[bool] = False
    baseline: ClassVar[str] = "knn"

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    @classmethod
    def build(cls, pool: Pool, options: SelectOptions, encoder: "Encoder | None") -> "Selector":
        """Build a selector of this method. encoder: for those that need one; None is TF-IDF."""
        return cls(pool)

    @abstractmethod
    def select(self, query: str, k: int) -> list[int]:
        """At most k indices into the pool, nearest first, without the query itself."""

    def similarities(self, query: str, indices: Sequence[int]) -> list[float | None]:
        """The similarity of each index to the query; None if the method does not rank."""
        return [None] * len(indices)

    def _first(self, indices: Iterable[int], query: str, k: int) -> list[int]:
        """The first k items whose input differs from the query."""
        same = normalise(query)
        others = (i for i in indices if normalise(self._pool.inputs[i]) != same)
        return list(islice(others, k))


class Fixed(Selector):
    """The first k of the pool, in its order."""

    name = "fixed"
    summary = "the first examples of the pool"

    def select(self, query: str, k: int) -> list[int]:
        return self._first(range(len(self._pool)), query, k)


class Random(Selector):
    """k drawn without replacement, from the seed and the query only.

    So the choice for a query does not depend on earlier queries.
    """

    name = "random"
    summary = "drawn at random for each input"
    draws = True

    def __init__(self, pool: Pool, seed: int) -> None:
        super().__init__(pool)
        self._seed = seed

    @classmethod
    def build(cls, pool: Pool, options: SelectOptions, encoder: "Encoder | None") -> Selector:
        return cls(pool, options.seed)

    def select(self, query: str, k: int) -> list[int]:
        shuffled = _shuffled(range(len(self._pool)), _generator(self._seed, query))
        return self._first(shuffled, query, k)


class RandomBlock(Random):
    """k drawn by the seed, the same for every query.

    Their spread over seeds is that over sets of demonstrations (Zhao et al. 2021); `random` draws
    for each query, so a seed's mean is one over many sets.
    """

    name = "random-block"
    summary = "drawn at random once, the same for all inputs"

    def select(self, query: str, k: int) -> list[int]:
        shuffled = _shuffled(range(len(self._pool)), _generator(self._seed, ""))
        return self._first(shuffled, query, k)


class Balanced(Random):
    """Equally many of each output as far as possible, drawn by the seed and the query.

    The outputs alternate, so that dropping the last ones keeps the balance. The first output is
    drawn as well.
    """

    name = "balanced"
    summary = "drawn at random, equally many of each label"
    needs_labels = True

    def __init__(self, pool: Pool, seed: int) -> None:
        super().__init__(pool, seed)
        self._by_output: dict[str, list[int]] = {}
        for index, output in enumerate(pool.outputs):
            self._by_output.setdefault(output, []).append(index)

    def select(self, query: str, k: int) -> list[int]:
        generator = _generator(self._seed, query)
        shuffled = [_shuffled(indices, generator) for indices in self._by_output.values()]
        generator.shuffle(shuffled)
        return self._first(_in_turn(shuffled), query, k)


class Nearest(Selector):
    """The k most similar inputs by an index; the base of all ranking methods."""

    ranks = True

    def __init__(self, pool: Pool, index: "SimilarityIndex") -> None:
        super().__init__(pool)
        self._index = index
        self._last: tuple[str, Similarities] | None = None

    def select(self, query: str, k: int) -> list[int]:
        from chatapp.tasks.selection.similarity import ranked

        return self._first(ranked(self._scores(query), k), query, k)

    def similarities(self, query: str, indices: Sequence[int]) -> list[float | None]:
        scores = self._scores(query)
        return [float(scores[index]) for index in indices]

    def _scores(self, query: str) -> "Similarities":
        """Scores of the whole pool, cached for one query, because callers ask several times."""
        if self._last is None or self._last[0] != query:
            self._last = query, self._index.scores(query)
        return self._last[1]


class Bm25(Nearest):
    """The k best by BM25."""

    name = "bm25"
    summary = "the nearest by shared words"
    baseline = "bm25"

    @classmethod
    def build(cls, pool: Pool, options: SelectOptions, encoder: "Encoder | None") -> Selector:
        from chatapp.tasks.selection.similarity import Bm25Index

        return cls(pool, Bm25Index(pool.inputs))


class Knn(Nearest):
    """The k nearest by embedding (KATE, Liu et al. 2021)."""

    name = "knn"
    summary = "the nearest by embedding"
    needs_encoder = True

    @classmethod
    def build(cls, pool: Pool, options: SelectOptions, encoder: "Encoder | None") -> Selector:
        return cls(pool, _index(pool, options, encoder))


class Mmr(Nearest):
    """Maximal marginal relevance (Carbonell and Goldstein 1998).

    Each choice maximizes relevance · similarity to the query - (1 - relevance) · highest similarity
    to the chosen ones, among the nearest 4k or 50, whichever is more: further ones are different,
    but not useful.
    """

    name = "mmr"
    summary = "near to the input but different from each other"
    needs_encoder = True

    def __init__(self, pool: Pool, index: "SimilarityIndex", relevance: float = 0.5) -> None:
        super().__init__(pool, index)
        self._relevance = relevance

    @classmethod
    def build(cls, pool: Pool, options: SelectOptions, encoder: "Encoder | None") -> Selector:
        return cls(pool, _index(pool, options, encoder), options.relevance)

    def select(self, query: str, k: int) -> list[int]:
        import numpy as np

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


class KnnBalanced(Knn):
    """The nearest of each output in turn: first the nearest of every output, then the second ones.

    A round begins with the output whose example is nearest, so that dropping the last ones keeps
    the balance.
    """

    name = "knn-balanced"
    summary = "the nearest of each label by embedding, equally many"
    needs_labels = True

    def select(self, query: str, k: int) -> list[int]:
        by_output: dict[str, list[int]] = {}
        for index in super().select(query, len(self._pool)):
            by_output.setdefault(self._pool.outputs[index], []).append(index)
        return list(islice(_in_turn([iter(indices) for indices in by_output.values()]), k))


class KnnBlock(Knn):
    """A few of the nearest after a block that is the same for every query.

    The block is drawn by the seed, equally many of each output, and printed first when the order
    is nearest-last, so the model reads it once and keeps it in its cache (as in arXiv:2507.16217).
    Where the window is too short for k, the block's first examples are dropped; as their number
    depends on the query, the cache then saves little.
    """

    name = "knn-block"
    summary = "a block drawn once for all inputs, then a few of the nearest"
    draws = True

    def __init__(self, pool: Pool, index: "SimilarityIndex", seed: int, nearest: int) -> None:
        super().__init__(pool, index)
        self._block = Balanced(pool, seed).select("", len(pool))
        self._nearest = nearest

    @classmethod
    def build(cls, pool: Pool, options: SelectOptions, encoder: "Encoder | None") -> Selector:
        return cls(pool, _index(pool, options, encoder), options.seed, options.nearest)

    def select(self, query: str, k: int) -> list[int]:
        few = min(self._nearest, k)
        block = self._first(self._block, query, k - few)
        near = (index for index in super().select(query, k) if index not in set(block))
        return [*islice(near, few), *block]


class Coverage(Knn):
    """The set whose tokens together are most similar to those of the query.

    Each choice adds most to the sum over the query's tokens of the highest similarity to a token
    of the chosen ones: greedy set coverage by BERTScore recall (Gupta et al. 2023,
    arXiv:2305.14907). When no choice adds anything, a new set begins. Candidates are the nearest
    4k or 50, whichever is more.
    """

    name = "coverage"
    summary = "those that together cover the words of the input"

    def __init__(self, pool: Pool, index: "CoveringIndex") -> None:
        super().__init__(pool, index)
        self._tokens = index

    def select(self, query: str, k: int) -> list[int]:
        import numpy as np

        near = super().select(query, max(4 * k, 50))
        if not near:
            return []
        recalls = self._tokens.recalls(query, near)
        left = np.ones(len(near), dtype=bool)
        chosen: list[int] = []
        covered = np.zeros(recalls.shape[1], dtype=np.float32)
        while len(chosen) < k and left.any():
            gains = np.where(left, np.maximum(recalls - covered, 0).sum(axis=1), -1)
            best = int(np.argmax(gains))
            if gains[best] < 1e-4 and covered.any():  # rounding is not a gain
                covered = np.zeros_like(covered)
                continue
            left[best] = False
            chosen.append(near[best])
            covered = np.maximum(covered, recalls[best])
        return chosen


class Vote(Knn):
    """The k nearest by embedding vote (see `vote`): the baseline of every kNN result."""

    name = "vote"
    summary = "no prompt: the answer is the majority label of the nearest"
    needs_labels = True
    votes = True


METHODS: dict[str, type[Selector]] = {
    method.name: method
    for method in (
        *(Fixed, Random, RandomBlock, Balanced, Bm25, Knn, Mmr),
        *(KnnBalanced, KnnBlock, Coverage, Vote),
    )
}


def with_encoder(methods: Mapping[str, type[Selector]]) -> list[str]:
    """The names of the methods that need an encoder."""
    return [name for name, method in methods.items() if method.needs_encoder]


def method_and_encoder(value: str) -> tuple[str, str | None]:
    """Split `knn` or `knn:minilm` into method and encoder. Raises PromptError."""
    name, colon, encoder = value.partition(":")
    if name not in METHODS:
        message = f"--select is {quoted(name)}, which is not known{suggestion(name, METHODS)}"
        raise PromptError(message)
    if colon and not METHODS[name].needs_encoder:
        known = ", ".join(with_encoder(METHODS))
        raise PromptError(f"--select is {quoted(value)}; only {known} take an encoder")
    if colon and not encoder:
        raise PromptError(f"--select is {quoted(value)}; expected an encoder after the colon")
    return name, encoder or None


def method_of(selection: str) -> type[Selector]:
    """The method of a selection such as "knn:minilm". Raises PromptError."""
    return METHODS[method_and_encoder(selection)[0]]


def help_on_methods() -> str:
    """What the built-in methods choose, for the help of a command."""
    summaries = "; ".join(f"{name}: {method.summary}" for name, method in METHODS.items())
    *most, last = with_encoder(METHODS)
    return f"{summaries}. {', '.join(most)} and {last} also with an encoder, as knn:minilm."


def vote(pool: Pool, indices: Sequence[int]) -> str:
    """The majority output of these pool items, nearest first; the nearest wins a tie.

    Raises ValueError when there are no items.
    """
    votes = Counter(pool.outputs[index] for index in indices)
    if not votes:
        raise ValueError("a vote needs at least one example")
    # A counter keeps the order of first appearance, and max takes the first of equals.
    return max(votes, key=lambda output: votes[output])


def _index(pool: Pool, options: SelectOptions, encoder: "Encoder | None") -> "CoveringIndex":
    from chatapp.tasks.selection.similarity import DenseIndex, TfidfIndex

    if encoder is None:
        return TfidfIndex(pool.inputs)
    return DenseIndex(pool.inputs, encoder, options.metric)


def _generator(seed: int, query: str) -> random.Random:
    return random.Random(f"{seed} {query}".encode("utf-8", "surrogatepass"))


def _shuffled(items: Sequence[int], generator: random.Random) -> Iterator[int]:
    """The items in random order (Fisher-Yates), drawn lazily."""
    moved: dict[int, int] = {}
    for position in range(len(items)):
        drawn = generator.randrange(position, len(items))
        yield items[moved.get(drawn, drawn)]
        moved[drawn] = moved.get(position, position)


def _in_turn(iterators: list[Iterator[int]]) -> Iterator[int]:
    while iterators:
        for iterator in list(iterators):
            try:
                yield next(iterator)
            except StopIteration:
                iterators.remove(iterator)
