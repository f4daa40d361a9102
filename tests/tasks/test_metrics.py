"""Every measure against values worked out by hand or published."""

import math
import random
from pathlib import Path
from statistics import NormalDist, variance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU

from chatapp.tasks import metrics
from chatapp.tasks.files.promptfile import load_prompt
from chatapp.tasks.metrics import MEASURES, estimate, t_quantile, wilson

GUIDE = Path(metrics.__file__).parents[1] / "docs" / "prompt-files.md"


@pytest.mark.parametrize("name", MEASURES)
def test_every_metric_measures_as_it_says(name, tmp_path):
    metric, golds = MEASURES[name], ["7 b c d e", "8 f g h i", ("9 k l m n", "no 9")]
    right, wrong = ["7 b c d e", "8 f g h i", "9 k l m n"], ["10 x", "11 y", "12 z"]
    assert metric.score.__doc__, f"{name}: a docstring says what it is, and its source"
    assert metric.score(right, golds) == pytest.approx(1)
    assert metric.score(wrong, golds) < 0.1
    alone = [
        metric.score([answer], [gold])
        for answer, gold in zip(right + wrong, golds * 2, strict=True)
    ]
    if metric.kind == "proportion":
        assert {*alone} == {0, 1}, f"{name}: it is no proportion; its kind is mean"
    if metric.kind != "whole":
        mixed = metric.score([*right[:2], wrong[2]], golds)
        assert mixed == pytest.approx(2 / 3), f"{name}: it is no mean over items; its kind is whole"
    low, high = estimate(name, [right, wrong], golds).interval
    assert low < 0.5 < high
    labels = 'labels = ["a", "b"]\n' if metric.needs_labels else ""
    (tmp_path / "it.toml").write_text(f'{labels}metrics = ["{name}"]\n')
    assert load_prompt(tmp_path / "it.toml").metrics == (name,)
    in_guide = f"`{name}`" in GUIDE.read_text(encoding="utf-8")
    assert in_guide, f"name `{name}` in {GUIDE}"


def test_accuracy():
    assert metrics.accuracy(["a", "b", "A"], ["a", "a", "a"]) == pytest.approx(1 / 3)


def test_macro_f1():
    """scikit-learn's documentation: labels 0 1 2 0 1 2 against 0 2 1 0 0 1 give 0.26…"""
    golds, answers = list("012012"), list("021001")
    assert metrics.macro_f1(answers, golds) == pytest.approx((0.8 + 0 + 0) / 3)


def test_macro_f1_counts_labels_that_are_only_answered():
    # a: 2 of 2 right, but one a too few; b: answered once, never gold.
    assert metrics.macro_f1(["a", "b"], ["a", "a"]) == pytest.approx((2 / 3 + 0) / 2)


@pytest.mark.parametrize(
    ("answer", "gold", "equal"),
    [("5", "5", 1), (" a  b\n", "a b", 1), ("-5", "5", 0), ("Yes", "yes", 0), ("", "", 1)],
)
def test_exact_match(answer, gold, equal):
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
def test_token_f1(answer, gold, f1):
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
def test_rouge_l(answer, gold, f1):
    assert metrics.rouge_l([answer], [gold]) == pytest.approx(f1)


def test_bleu_is_that_of_sacrebleu_over_100():
    answers = ["the cat sat on the mat today", "a dog barks at night"]
    golds = ["the cat is on the mat today", "a dog barks at night"]
    assert metrics.bleu(golds, golds) == pytest.approx(1)
    expected = BLEU().corpus_score(answers, [golds]).score / 100
    assert 0 < expected < 1
    assert metrics.bleu(answers, golds) == pytest.approx(expected)


def test_t_quantiles_are_those_of_the_tables():
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 30: 2.042}
    for freedom, value in table.items():
        assert t_quantile(freedom) == pytest.approx(value, abs=5e-4)
    assert t_quantile(100_000) == pytest.approx(NormalDist().inv_cdf(0.975), abs=1e-4)


def test_wilson_interval():
    # Worked examples of Newcombe 1998, Statistics in Medicine 17, table I, method 3.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_an_interval_of_items_and_seeds_by_hand():
    runs = [["a", "a", "a", "b"], ["a", "a", "b", "b"], ["a", "b", "b", "b"]]
    found = estimate("accuracy", runs, ["a", "a", "a", "a"])
    assert (found.mean, found.spread) == pytest.approx((0.5, 0.25))
    assert found.interval_of == "items-seeds"
    of_items = variance([1, 2 / 3, 1 / 3, 0]) / 4
    table = [[answer == "a" for answer in run] for run in runs]
    rows, columns = [0.75, 0.5, 0.25], [1, 2 / 3, 1 / 3, 0]
    squares = sum(
        (table[s][i] - rows[s] - columns[i] + 0.5) ** 2 for s in range(3) for i in range(4)
    )
    beyond = max(0.0, variance(rows) / 3 - squares / (3 * 2) / 12)
    whole = of_items + beyond
    freedom = int(whole**2 / (of_items**2 / 3 + beyond**2 / 2))
    half = {3: 3.182446, 4: 2.776445, 5: 2.570582}[freedom] * math.sqrt(whole) / 0.25
    expected = [1 / (1 + math.exp(-logit)) for logit in (-half, half)]
    assert found.interval == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("seeds", [1, 3, 5])
@pytest.mark.parametrize("shape", [None, 0.5, 0.2])
def test_an_interval_holds_the_truth_in_95_of_100_runs(seeds, shape):
    """Simulated evaluations of 60 items: all alike, or of unequal difficulty (drawn from Beta)."""
    n, runs = 80, 1500 if seeds == 1 else 700
    draw = random.Random(f"{seeds} {shape}")
    held = 0
    for _ in range(runs):
        right = [0.7 if shape is None else draw.betavariate(shape, shape) for _ in range(n)]
        answers = [["ab"[draw.random() > share] for share in right] for _ in range(seeds)]
        low, high = estimate("accuracy", answers, ["a"] * n).interval
        held += low <= (0.7 if shape is None else 0.5) <= high
    assert 0.93 <= held / runs <= 0.975


def test_equal_runs_still_leave_the_chance_of_the_items():
    """Three greedy runs say no more than one; all right or all wrong is no certainty."""
    answers = ["a"] * 7 + ["b"] * 3
    low, high = estimate("accuracy", [answers] * 3, ["a"] * 10).interval
    assert high - low > 0.3
    assert estimate("accuracy", [["a"] * 10] * 2, ["a"] * 10).interval == wilson(10, 10)


@given(
    st.lists(st.lists(st.sampled_from("ab"), min_size=4, max_size=4), min_size=2, max_size=4),
    st.sampled_from(["accuracy", "macro_f1", "token_f1"]),
)
@settings(max_examples=40, deadline=None)
def test_an_interval_holds_its_mean_and_leaves_no_share(runs, measure):
    found = estimate(measure, runs, list("aabb"))
    low, high = found.interval
    assert 0 <= low <= found.mean + 1e-9
    assert found.mean - 1e-9 <= high <= 1


def test_one_seed_gives_an_interval_over_the_items():
    answers, golds = ["a"] * 81 + ["b"] * 182, ["a"] * 263
    found = estimate("accuracy", [answers], golds)
    assert found.spread is None
    assert found.interval_of == "wilson"
    assert found.interval == wilson(81, 263)


@pytest.mark.parametrize("measure", ["macro_f1", "token_f1", "bleu", "rouge_l"])
def test_bootstrap_intervals(measure):
    answers = ["the cat sat on the mat", "a dog barks at night", "yes it is", "yes it is so"] * 10
    golds = ["the cat is on the mat", "a dog barks at night", "yes it is so", "yes it is so"] * 10
    found = estimate(measure, [answers], golds)
    low, high = found.interval
    assert found.interval_of == "bootstrap"
    assert low < found.mean < high
    assert found.mean == MEASURES[measure].score(answers, golds)
    # Four times the items, half the width.
    wide = estimate(measure, [answers * 4], golds * 4).interval
    assert 0.35 < (wide[1] - wide[0]) / (high - low) < 0.7
    assert estimate(measure, [answers], golds) == found


def test_the_best_of_several_right_answers_counts():
    golds = [("Ann Lee", "Anna"), "Bo"]
    assert metrics.squad_match(["the anna!", "bob"], golds) == 0.5
    assert metrics.token_f1(["Lee", "Bo"], golds) == pytest.approx((2 / 3 + 1) / 2)
    assert metrics.accuracy(["Anna", "Bo"], golds) == 1.0
    expected = metrics.bleu(["Ann Lee", "Bo"], ["Ann Lee", "Bo"])
    assert metrics.bleu(["Ann Lee", "Bo"], golds) == expected


def test_numbers_are_compared_as_numbers():
    answers = ["It costs $1,200.50.", "5.0", "3 + 4 = 7", "-2", "none", "12"]
    golds = ["1200.5", "5", "7", "2", "0", "no number"]
    assert [metrics.numeric_match([a], [g]) for a, g in zip(answers, golds, strict=True)] == [
        *(1.0, 1.0, 1.0, 0.0, 0.0, 0.0)
    ]


def test_two_models_on_the_same_items():
    """220 items, 60 right by both, 18 by the first alone, 5 by the second: the exact p is 0.011,
    where the intervals of both overlap."""
    golds = ["a"] * 220
    first = ["a"] * 78 + ["b"] * 142
    second = ["a"] * 60 + ["b"] * 18 + ["a"] * 5 + ["b"] * 137
    found = metrics.difference("accuracy", [first], [second], golds)
    assert (found.only_first, found.only_second) == (18, 5)
    assert found.p == pytest.approx(0.0106220, abs=1e-7)
    low, high = found.interval
    assert 0 < low < found.mean < high
    assert found.mean == pytest.approx(13 / 220)
    assert wilson(78, 220)[0] < wilson(65, 220)[1]
    turned = metrics.difference("accuracy", [second], [first], golds)
    assert (turned.mean, turned.p) == (pytest.approx(-13 / 220), found.p)
    equal = metrics.difference("accuracy", [first], [first], golds)
    assert (equal.mean, equal.p) == (0, 1)
    assert equal.interval == (-wilson(0, 220)[1], wilson(0, 220)[1])
    assert metrics.mcnemar(0, 6) == 2 / 2**6
    assert metrics.mcnemar(5000, 5100) == pytest.approx(0.3245, abs=1e-3)  # no float overflows


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_interval_of_a_difference_holds_the_truth(seeds):
    """Two models with shares of 0.7 and 0.6 that err on the same hard items."""
    draw, held, runs = random.Random(seeds), 0, 300
    for _ in range(runs):
        hard = [draw.betavariate(2, 1) for _ in range(80)]
        first, second = (
            [["ab"[draw.random() > share * scale] for share in hard] for _ in range(seeds)]
            for scale in (1.0, 0.85)
        )
        low, high = metrics.difference("accuracy", first, second, ["a"] * 80).interval
        held += low <= 0.15 * 2 / 3 <= high
    assert 0.92 <= held / runs <= 0.98


def test_the_interval_of_any_metric_of_the_whole_resamples_the_whole(monkeypatch):
    again = metrics.Metric(metrics.macro_f1, "whole")
    monkeypatch.setitem(metrics.MEASURES, "another", again)
    answers, golds = ["a", "b", "b", "a", "b"] * 9, ["a", "a", "b", "a", "b"] * 9
    interval = metrics.bootstrap("macro_f1", answers, golds)
    assert metrics.bootstrap("another", answers, golds) == interval
    assert interval[0] < metrics.macro_f1(answers, golds) < interval[1]
