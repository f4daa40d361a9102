"""How fast demonstrations are found in a pool of 100,000 rows.

Run with `pytest -m benchmark -s tests/benchmarks/test_retrieval.py`.
"""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scale import check_finite, is_tiny, sized

from chatapp.prompting.examples import Pool
from chatapp.tasks.selection.encoders import CachedEncoder
from chatapp.tasks.selection.methods import Selector
from chatapp.tasks.selection.select import Select, build_selector
from chatapp.tasks.selection.similarity import Embeddings

ROWS, QUERIES = sized((100_000, 200), (200, 3))
DIMENSIONS = 384


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Rows of 5 to 30 words whose frequencies follow Zipf's law, and the queries after them."""
    generator = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(50_000)])
    share = 1 / np.arange(1, len(words) + 1)
    lengths = generator.integers(5, 31, ROWS + QUERIES)
    drawn = words[generator.choice(len(words), lengths.sum(), p=share / share.sum())]
    return [" ".join(part) for part in np.split(drawn, np.cumsum(lengths)[:-1])]


class RandomEncoder:
    """Vectors that a text's own bytes determine, at the cost of no model."""

    fingerprint = "random"

    def encode(self, texts: Sequence[str]) -> Embeddings:
        seeds = [int.from_bytes(text.encode()[-8:]) for text in texts]
        return np.stack(
            [np.random.default_rng(s).standard_normal(DIMENSIONS, np.float32) for s in seeds]
        )


def measure(name: str, texts: list[str], build: "Build") -> tuple[float, float]:
    """Seconds to build the selector, and the median seconds of a query."""
    pool = Pool(texts[:ROWS], ["label"] * ROWS)
    start = time.perf_counter()
    selector = build(pool)
    built = time.perf_counter() - start
    times = []
    for query in texts[ROWS:]:
        start = time.perf_counter()
        assert len(selector.select(query, 8)) == 8
        times.append(time.perf_counter() - start)
    median = statistics.median(times)
    print(f"\n{name}: {built:.2f} s to build, {median * 1e3:.2f} ms a query, top 8 of {ROWS:,}")
    check_finite(built, median)
    return built, median


class Build:
    def __init__(self, method: str, encoder: CachedEncoder | None = None) -> None:
        self.method = method
        self.encoder = encoder

    def __call__(self, pool: Pool) -> Selector:
        return build_selector(pool, Select(method=self.method), self.encoder)


@pytest.mark.benchmark
@pytest.mark.parametrize("method", ["bm25", "knn"])
def test_word_indexes(texts: list[str], method: str) -> None:
    built, median = measure("TF-IDF" if method == "knn" else "BM25", texts, Build(method))
    assert is_tiny() or built < 60
    assert is_tiny() or median < 0.020


@pytest.mark.benchmark
def test_cached_embeddings(texts: list[str], tmp_path: Path) -> None:
    encoder = CachedEncoder(RandomEncoder(), tmp_path)
    measure("embeddings, cache empty", texts, Build("knn", encoder))
    # The queries are in the cache as well now: what is measured is the search.
    _, median = measure("embeddings, cache full", texts, Build("knn", encoder))
    assert is_tiny() or median < 0.020
