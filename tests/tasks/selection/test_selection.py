import math
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.rows.examples import Pool, normalise
from chatapp.tasks.selection.methods import (
    METHODS,
    Balanced,
    Coverage,
    Fixed,
    Knn,
    Mmr,
    Random,
    RandomBlock,
    vote,
)
from chatapp.tasks.selection.select import Select, build_selector
from chatapp.tasks.selection.similarity import (
    Bm25Index,
    DenseIndex,
    TfidfIndex,
)

QUESTIONS = [
    ("Who wrote the first dictionary of English?", "person"),
    ("Who painted the ceiling of the chapel?", "person"),
    ("Where is the longest river of Asia?", "place"),
    ("Where was the first bridge of iron built?", "place"),
    ("How many legs does a spider have?", "number"),
    ("How many moons does the planet Mars have?", "number"),
    ("What is 3 + 4?", "number"),
    ("What is 3 - 4?", "number"),
]
POOL = Pool([question for question, _ in QUESTIONS], [label for _, label in QUESTIONS])


class LetterEncoder:
    """Counts of the letters a to z."""

    fingerprint = "letters"

    def encode(self, texts):
        letters = "abcdefghijklmnopqrstuvwxyz"
        return np.array(
            [[text.lower().count(letter) for letter in letters] for text in texts], dtype=np.float32
        )

    def encode_tokens(self, texts):
        """Words as tokens."""
        return [self.encode(text.split()).reshape(-1, 26) for text in texts]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [0, 1, 3, 7, 100])
def test_every_selector_returns_k_distinct_indices_without_the_query(method, k):
    selector = build_selector(POOL, Select(method=method, seed=1))
    chosen = selector.select(" where is the LONGEST river of asia", k)
    assert len(chosen) == len(set(chosen)) == min(k, len(POOL) - 1)
    assert set(chosen) <= set(range(len(POOL))) - {2}
    assert len(selector.similarities("x", chosen)) == len(chosen)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("query", ["", " ", "\ud800{}", "zzzz qqqq", "a" * 10_000, "¿?"])
def test_every_selector_survives_any_query(method, query):
    selector = build_selector(POOL, Select(method=method))
    assert len(selector.select(query, 3)) == 3
    assert selector.select(query, 3) == selector.select(query, 3)


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_pool_gives_nothing(method):
    assert build_selector(Pool([], []), Select(method=method)).select("x", 3) == []


@pytest.mark.parametrize("method", ["bm25", "knn", "mmr", "coverage", "vote"])
def test_outputs_are_no_part_of_an_index(method):
    hidden = Pool(POOL.inputs, [f"river {number}" for number in range(len(POOL))])
    for encoder in (None, LetterEncoder()):
        ours, theirs = (
            build_selector(pool, Select(method=method), encoder) for pool in (POOL, hidden)
        )
        assert ours.select("a river", 8) == theirs.select("a river", 8)


def test_fixed_takes_the_first():
    assert Fixed(POOL).select("x", 3) == [0, 1, 2]


def test_random_depends_on_seed_and_query_alone():
    first, second = Random(POOL, 0), Random(POOL, 0)
    queries = [f"query {number}" for number in range(50)]
    forwards = [first.select(query, 3) for query in queries]
    backwards = [second.select(query, 3) for query in reversed(queries)]
    assert forwards == backwards[::-1]
    assert [Random(POOL, 1).select(query, 3) for query in queries] != forwards
    assert len({tuple(each) for each in forwards}) > 40
    # A draw of more goes on where a draw of fewer ended.
    assert Random(POOL, 0).select("x", 5)[:3] == Random(POOL, 0).select("x", 3)


def test_random_draws_every_item_equally_often():
    selector = Random(POOL, 0)
    drawn = Counter(index for n in range(4_000) for index in selector.select(f"q{n}", 2))
    # 1,000 each are expected, with a standard deviation of some 27.
    assert all(850 < drawn[index] < 1_150 for index in range(len(POOL)))


def test_a_random_block_is_drawn_once_by_the_seed():
    queries = [f"query {number}" for number in range(9)]
    blocks = [[RandomBlock(POOL, seed).select(query, 3) for query in queries] for seed in range(9)]
    assert all(block == [block[0]] * len(queries) for block in blocks)
    assert len({tuple(block[0]) for block in blocks}) > 5
    assert RandomBlock(POOL, 0).select("x", 5)[:3] == blocks[0][0]
    assert blocks[0][0][0] not in RandomBlock(POOL, 0).select(POOL.inputs[blocks[0][0][0]], 3)


def test_balanced_draws_alike_of_every_label():
    selector = Balanced(POOL, 0)
    firsts = set()
    for number in range(30):
        chosen = selector.select(f"query {number}", 6)
        labels = [POOL.outputs[index] for index in chosen]
        # Each three in a row hold all three labels, so cutting the end keeps the balance.
        assert len(set(labels[:3])) == len(set(labels[3:])) == 3
        firsts.add(labels[0])
    assert firsts == {"person", "place", "number"}
    # When a label runs out, the others fill its place.
    assert len(selector.select("x", 8)) == 8


def test_signs_tell_equations_apart():
    for index in (Bm25Index(POOL.inputs), TfidfIndex(POOL.inputs)):
        assert Knn(POOL, index).select("What is 3 - 5?", 1) == [7]
        assert Knn(POOL, index).select("What is 3 + 5?", 1) == [6]


def test_bm25_is_the_formula():
    inputs = ["a b b c", "b d", "c c c c e e"]
    scores = Bm25Index(inputs).scores("b c z")
    lengths = [4, 2, 6]
    for row, text in enumerate(inputs):
        expected = 0.0
        for word in "bc":
            frequency = text.split().count(word)
            holding = sum(word in other.split() for other in inputs)
            idf = math.log(1 + (3 - holding + 0.5) / (holding + 0.5))
            norm = 1.5 * (1 - 0.75 + 0.75 * lengths[row] / 4)
            expected += idf * frequency / (norm + frequency)
        assert scores[row] == pytest.approx(expected, rel=1e-5)


def test_tfidf_is_the_formula():
    inputs = ["a b b c", "b d", "c c c c e e"]

    def vector(text):
        weights = {
            word: (1 + math.log(count))
            * (1 + math.log(4 / (1 + sum(word in other.split() for other in inputs))))
            for word, count in Counter(text.split()).items()
            if any(word in other.split() for other in inputs)
        }
        norm = math.sqrt(sum(weight**2 for weight in weights.values()))
        return {word: weight / norm for word, weight in weights.items()}

    index = TfidfIndex(inputs)
    for query in ("b c c z", "e", "a b b c"):
        mine = vector(query)
        for row, text in enumerate(inputs):
            theirs = vector(text)
            expected = sum(weight * theirs.get(word, 0) for word, weight in mine.items())
            assert index.scores(query)[row] == pytest.approx(expected, abs=1e-6)
    assert index.between(1)[1] == pytest.approx(1.0)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_dense_nearness_is_the_formula(metric):
    encoder = LetterEncoder()
    index = DenseIndex(POOL.inputs, encoder, metric)
    query = "How many rivers are there in Asia?"
    q = encoder.encode([query])[0].astype(float)
    for row, vector in enumerate(encoder.encode(POOL.inputs).astype(float)):
        expected = (
            q @ vector / np.linalg.norm(q) / np.linalg.norm(vector)
            if metric == "cosine"
            else -np.linalg.norm(q - vector)
        )
        assert index.scores(query)[row] == pytest.approx(expected, abs=1e-3)
    assert np.argmax(index.between(3)) == 3


def test_a_text_without_direction_is_near_to_nothing():
    index = DenseIndex(["abc", "123"], LetterEncoder(), "cosine")
    assert index.scores("456").tolist() == [0.0, 0.0]


def test_an_encoder_that_gives_no_numbers_is_refused():
    class Broken(LetterEncoder):
        def encode(self, texts):
            return np.full((len(texts), 2), np.nan, dtype=np.float32)

    with pytest.raises(ValueError, match="the encoder letters gives values that are not finite"):
        DenseIndex(["a"], Broken(), "cosine")


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60), st.integers(0, 70), st.integers(0, 5))
def test_ranking_is_a_stable_sort(values, k, same):
    class Given:
        def scores(self, query):
            return np.array(values, dtype=np.float32)

        def between(self, row):
            raise AssertionError

    # The first few inputs are the query itself.
    inputs = ["query" if row < same else f"input {row}" for row in range(len(values))]
    chosen = Knn(Pool(inputs, inputs), Given()).select("query", k)
    ranked = sorted(range(len(values)), key=lambda row: -values[row])
    assert chosen == [row for row in ranked if normalise(inputs[row]) != "query"][:k]


def test_similarities_are_those_of_the_ranking():
    selector = build_selector(POOL, Select(method="knn"))
    query = "Who wrote the longest book?"
    chosen = selector.select(query, 8)
    similarities = selector.similarities(query, chosen)
    assert similarities == sorted(similarities, reverse=True)
    assert chosen[0] == 0
    assert Fixed(POOL).similarities(query, [0, 1]) == [None, None]


def test_mmr_equals_a_plain_implementation():
    generator = random.Random(0)
    words = "alpha beta gamma delta epsilon zeta eta theta".split()
    inputs = [" ".join(generator.choices(words, k=4)) + f" {number}" for number in range(40)]
    pool = Pool(inputs, inputs)
    index = TfidfIndex(inputs)
    query = "alpha beta gamma"
    nearness = index.scores(query)
    for relevance in (0.0, 0.3, 0.7, 1.0):
        expected = []
        candidates = Knn(pool, index).select(query, 50)
        while len(expected) < 6:
            left = [row for row in candidates if row not in expected]
            expected.append(
                max(
                    left,
                    key=lambda row: (
                        relevance * nearness[row]
                        - (1 - relevance)
                        * max((index.between(other)[row] for other in expected), default=0.0)
                    ),
                )
            )
        assert Mmr(pool, index, relevance).select(query, 6) == expected


def test_mmr_avoids_repeating_itself():
    inputs = ["red apple pie", "red apple pie.", "red apple tart", "a green pear from afar"]
    pool = Pool(inputs, inputs)
    query = "red apple pie, pear"
    assert set(build_selector(pool, Select(method="knn")).select(query, 2)) == {0, 1}
    diverse = build_selector(pool, Select(method="mmr")).select(query, 2)
    assert len({0, 1} & set(diverse)) == 1


@pytest.mark.parametrize("encoder", [None, LetterEncoder()])
def test_balanced_knn_takes_the_nearest_of_each_label_in_turn(encoder):
    query = "Where is the longest bridge that a person wrote of?"
    chosen = build_selector(POOL, Select(method="knn-balanced"), encoder).select(query, 7)
    nearest = build_selector(POOL, Select(method="knn"), encoder).select(query, len(POOL))
    assert chosen[0] == nearest[0]
    of_label = {
        label: [index for index in nearest if POOL.outputs[index] == label]
        for label in set(POOL.outputs)
    }
    for start in (0, 3):
        labels = [POOL.outputs[index] for index in chosen[start : start + 3]]
        assert len(set(labels)) == 3
        assert chosen[start : start + 3] == [of_label[label][start // 3] for label in labels]
    assert chosen[6] == of_label["number"][2], "the others have no third"


def test_a_block_is_the_same_for_every_query_and_the_nearest_stand_before_it():
    select = Select(method="knn-block", nearest=2, seed=3)
    selector = build_selector(POOL, select)
    queries = ["a bridge of iron and steel", "legs of a spider or a beetle", "6 + 4"]
    chosen = [selector.select(query, 5) for query in queries]
    assert len({tuple(indices[2:]) for indices in chosen}) == 1
    assert len({POOL.outputs[index] for index in chosen[0][2:]}) == 3, "one of each label"
    knn = build_selector(POOL, Select(method="knn"))
    for query, indices in zip(queries, chosen, strict=True):
        block = set(indices[2:])
        assert indices[:2] == [i for i in knn.select(query, 8) if i not in block][:2]
    other = build_selector(POOL, select.model_copy(update={"seed": 4}))
    assert other.select(queries[0], 5)[2:] != chosen[0][2:]
    assert selector.select(queries[0], 1) == knn.select(queries[0], 1)


@pytest.mark.parametrize("encoder", [None, LetterEncoder()])
def test_coverage_equals_a_plain_implementation(encoder):
    generator = random.Random(0)
    words = "alpha beta gamma delta epsilon zeta eta theta".split()
    inputs = [" ".join(generator.choices(words, k=3)) + f" {number}" for number in range(40)]
    index = DenseIndex(inputs, encoder, "cosine") if encoder else TfidfIndex(inputs)
    query = "alpha beta gamma zeta"
    recalls = index.recalls(query, range(40))

    def coverage(rows):
        return float(recalls[rows].max(axis=0).sum()) if rows else 0.0

    expected = []
    current = []
    candidates = Knn(Pool(inputs, inputs), index).select(query, 50)
    while len(expected) < 8:
        left = [row for row in candidates if row not in expected]
        best = max(left, key=lambda row: coverage([*current, row]))
        if coverage([*current, best]) < coverage(current) + 1e-4 and current:
            current = []
            continue
        current.append(best)
        expected.append(best)
    chosen = Coverage(Pool(inputs, inputs), index).select(query, 8)
    assert [coverage(chosen[:n]) for n in range(9)] == pytest.approx(
        [coverage(expected[:n]) for n in range(9)], abs=1e-5
    )


def test_coverage_takes_an_example_for_each_part_of_the_input():
    same = "list all the great rivers"
    inputs = [f"{same} of Asia", f"{same} of Europe", "sort by length", "add up"]
    pool, query = Pool(inputs, inputs), f"{same} by length"
    assert set(build_selector(pool, Select(method="knn")).select(query, 2)) == {0, 1}
    assert 2 in build_selector(pool, Select(method="coverage")).select(query, 2)


def test_vote_takes_the_majority_and_then_the_nearest():
    pool = Pool(["1", "2", "3", "4", "5"], ["a", "b", "b", "a", "c"])
    assert vote(pool, [0, 1, 2]) == "b"
    assert vote(pool, [0, 1, 2, 3]) == "a"
    assert vote(pool, [4, 1, 2, 0, 3]) == "b"
    assert vote(pool, [4]) == "c"
    with pytest.raises(ValueError, match="at least one example"):
        vote(pool, [])


@given(st.lists(st.text(min_size=1), min_size=1, max_size=20, unique=True), st.text())
def test_word_indexes_survive_any_text(inputs, query):
    kept = [text for text in inputs if text.strip()] or ["x"]
    for index in (Bm25Index(kept), TfidfIndex(kept)):
        assert index.scores(query).shape == (len(kept),)
        assert np.isfinite(index.scores(query)).all()


@pytest.mark.parametrize("method", ["knn", "mmr"])
def test_a_query_is_compared_with_the_pool_once(method):
    asked: list[Sequence[str]] = []

    class Counting(LetterEncoder):
        def encode(self, texts):
            asked.append(texts)
            return super().encode(texts)

    selector = build_selector(POOL, Select(method=method), Counting())
    for query in ("Who?", "Where?"):
        selector.similarities(query, selector.select(query, 2))
    assert asked[1:] == [["Who?"], ["Where?"]]
