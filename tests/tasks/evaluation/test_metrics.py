"""Every measure against values worked out by hand or published."""

import math
from statistics import NormalDist, fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU

from chatapp.tasks.evaluation import metrics
from chatapp.tasks.evaluation.inputs import Gold
from chatapp.tasks.evaluation.metrics import (
    MEASURES,
    estimate,
    logit_t_interval,
    t_quantile,
    wilson,
)


def test_accuracy() -> None:
    assert metrics.accuracy(["a", "b", "A"], ["a", "a", "a"]) == pytest.approx(1 / 3)


def test_macro_f1() -> None:
    """scikit-learn's documentation: labels 0 1 2 0 1 2 against 0 2 1 0 0 1 give 0.26…"""
    golds, answers = list("012012"), list("021001")
    assert metrics.macro_f1(answers, golds) == pytest.approx((0.8 + 0 + 0) / 3)


def test_macro_f1_counts_labels_that_are_only_answered() -> None:
    # a: 2 of 2 right, but one a too few; b: answered once, never gold.
    assert metrics.macro_f1(["a", "b"], ["a", "a"]) == pytest.approx((2 / 3 + 0) / 2)


@pytest.mark.parametrize(
    ("answer", "gold", "equal"),
    [("5", "5", 1), (" a  b\n", "a b", 1), ("-5", "5", 0), ("Yes", "yes", 0), ("", "", 1)],
)
def test_exact_match(answer: str, gold: str, equal: int) -> None:
    assert metrics.exact_match([answer], [gold]) == equal


@pytest.mark.parametrize(
    ("answer", "gold", "f1"),
    [
        ("the cat sat", "a cat", 2 / 3),  # {cat, sat} and {cat}
        ("Cat, cat!", "cat", 2 / 3),  # each word counts as often as it occurs
        ("dog", "cat", 0),
        ("The.", "a", 1),  # nothing is left of either
        ("the", "cat", 0),
    ],
)
def test_token_f1(answer: str, gold: str, f1: float) -> None:
    assert metrics.token_f1([answer], [gold]) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("answer", "gold", "f1"),
    [
        ("police kill the gunman", "police killed the gunman", 3 / 4),  # Lin 2004, section 3
        ("the gunman kill police", "police killed the gunman", 2 / 4),
        ("a b c d e", "a x c y e", 3 / 5),
        ("Ünder-score", "ünder_score", 1),
        ("", "word", 0),
    ],
)
def test_rouge_l(answer: str, gold: str, f1: float) -> None:
    assert metrics.rouge_l([answer], [gold]) == pytest.approx(f1)


def test_bleu_is_that_of_sacrebleu_over_100() -> None:
    answers = ["the cat sat on the mat today", "a dog barks at night"]
    golds = ["the cat is on the mat today", "a dog barks at night"]
    assert metrics.bleu(golds, golds) == pytest.approx(1)
    expected = BLEU().corpus_score(answers, [golds]).score / 100
    assert 0 < expected < 1
    assert metrics.bleu(answers, golds) == pytest.approx(expected)


def test_t_quantiles_are_those_of_the_tables() -> None:
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 30: 2.042}
    for freedom, value in table.items():
        assert t_quantile(freedom) == pytest.approx(value, abs=5e-4)
    assert t_quantile(100_000) == pytest.approx(NormalDist().inv_cdf(0.975), abs=1e-4)


def test_wilson_interval() -> None:
    # Worked examples of Newcombe 1998, Statistics in Medicine 17, table I, method 3.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_several_seeds_give_students_interval_of_the_log_odds() -> None:
    runs = [["a", "a", "a", "b"], ["a", "a", "b", "b"], ["a", "b", "b", "b"]]
    found = estimate("accuracy", runs, ["a", "a", "a", "a"])
    assert found.mean == pytest.approx(0.5)
    assert found.spread == pytest.approx(0.25)
    half = 4.302653 * 0.25 / math.sqrt(3) / (0.5 * 0.5)
    expected = [1 / (1 + math.exp(-logit)) for logit in (-half, half)]
    assert found.interval == pytest.approx(expected)
    assert found.interval_of == "logit-t"
    assert logit_t_interval([0.75, 0.5, 0.25]) == pytest.approx(found.interval)


@given(st.lists(st.sampled_from([0.0, 1e-9, 0.02, 0.5, 0.9, 0.999, 1.0]), min_size=2, max_size=5))
def test_no_interval_of_seeds_leaves_what_a_share_can_be(values: list[float]) -> None:
    low, high = logit_t_interval(values)
    assert 0 <= low <= fmean(values) + 1e-12
    assert fmean(values) - 1e-12 <= high <= 1


def test_two_seeds_that_differ_give_a_share() -> None:
    found = estimate("accuracy", [["a", "a", "a", "b"], ["a", "b", "b", "b"]], ["a"] * 4)
    assert 0 < found.interval[0] < found.mean < found.interval[1] < 1


def test_few_seeds_that_agree_give_students_interval() -> None:
    """Where the values are close together, the scale hardly matters."""
    values = [0.500, 0.502, 0.498, 0.501, 0.499]
    half = 2.776445 * stdev(values) / math.sqrt(5)
    assert logit_t_interval(values) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)


def test_one_seed_gives_an_interval_over_the_items() -> None:
    answers, golds = ["a"] * 81 + ["b"] * 182, ["a"] * 263
    found = estimate("accuracy", [answers], golds)
    assert found.spread is None
    assert found.interval_of == "wilson"
    assert found.interval == wilson(81, 263)


@pytest.mark.parametrize("measure", ["macro_f1", "token_f1", "bleu", "rouge_l"])
def test_bootstrap_intervals(measure: str) -> None:
    answers = ["the cat sat on the mat", "a dog barks at night", "yes it is", "yes it is so"] * 10
    golds = ["the cat is on the mat", "a dog barks at night", "yes it is so", "yes it is so"] * 10
    found = estimate(measure, [answers], golds)  # type: ignore[arg-type]
    low, high = found.interval
    assert found.interval_of == "bootstrap"
    assert low < found.mean < high
    assert found.mean == MEASURES[measure](answers, golds)  # type: ignore[index]
    # Four times the items, half the width.
    wide = estimate(measure, [answers * 4], golds * 4).interval  # type: ignore[arg-type]
    assert 0.35 < (wide[1] - wide[0]) / (high - low) < 0.7
    assert estimate(measure, [answers], golds) == found  # type: ignore[arg-type]


def test_the_best_of_several_right_answers_counts() -> None:
    golds: list[Gold] = [("Ann Lee", "Anna"), "Bo"]
    assert metrics.squad_match(["the anna!", "bob"], golds) == 0.5
    assert metrics.token_f1(["Lee", "Bo"], golds) == pytest.approx((2 / 3 + 1) / 2)
    assert metrics.accuracy(["Anna", "Bo"], golds) == 1.0
    expected = metrics.bleu(["Ann Lee", "Bo"], ["Ann Lee", "Bo"])
    assert metrics.bleu(["Ann Lee", "Bo"], golds) == expected


def test_numbers_are_compared_as_numbers() -> None:
    answers = ["It costs $1,200.50.", "5.0", "3 + 4 = 7", "-2", "none", "12"]
    golds = ["1200.5", "5", "7", "2", "0", "no number"]
    assert [metrics.numeric_match([a], [g]) for a, g in zip(answers, golds, strict=True)] == [
        *(1.0, 1.0, 1.0, 0.0, 0.0, 0.0)
    ]
