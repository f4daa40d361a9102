"""Labels are decided as the papers say, from nothing but the raw numbers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.tasks.answering import Likelihoods, best, probabilities

LOGS = st.lists(st.floats(-2000, 0), min_size=2, max_size=6)


def test_direct_is_the_likelihood_over_the_labels():
    found = probabilities(Likelihoods({"a": math.log(0.2), "b": math.log(0.05)}), "direct")
    assert found == pytest.approx({"a": 0.8, "b": 0.2})


def test_calibrated_is_contextual_calibration():
    """The paper's own steps: p normalised, W = diag(p_cf)^-1, b = 0, q = W p."""
    direct = np.log([0.3, 0.1])
    free = np.log([[0.4, 0.1], [0.2, 0.2], [0.05, 0.15]])
    p = np.exp(direct) / np.exp(direct).sum()
    p_cf = np.mean(np.exp(free) / np.exp(free).sum(axis=1, keepdims=True), axis=0)
    q = np.linalg.inv(np.diag(p_cf)) @ p
    likelihoods = Likelihoods(
        dict(zip("xy", direct, strict=True)),
        tuple(dict(zip("xy", row, strict=True)) for row in free),
    )
    expected = dict(zip("xy", q / q.sum(), strict=True))
    assert probabilities(likelihoods, "calibrated") == pytest.approx(expected)


def test_a_label_that_says_nothing_is_what_calibration_takes_away():
    same = {"a": -1.0, "b": -3.0}
    likelihoods = Likelihoods(same, (same, same, same))
    assert probabilities(likelihoods, "calibrated") == pytest.approx({"a": 0.5, "b": 0.5})


def test_channel_is_the_likelihood_of_the_input():
    likelihoods = Likelihoods({"a": -1.0, "b": -9.0}, channel={"a": -40.0, "b": -39.0})
    found = probabilities(likelihoods, "channel")
    assert best(found) == "b"
    assert found["b"] / found["a"] == pytest.approx(math.e)


@pytest.mark.parametrize("scoring", ["direct", "calibrated", "channel"])
def test_numbers_that_are_not_there(scoring):
    with pytest.raises(ValueError, match=scoring):
        probabilities(Likelihoods(), scoring)
    if scoring == "calibrated":
        with pytest.raises(ValueError, match=scoring):
            probabilities(Likelihoods({"a": -1.0}), "calibrated")


@given(direct=LOGS, free=LOGS)
def test_probabilities_sum_to_one_however_small(direct, free):
    labels = [str(n) for n in range(min(len(direct), len(free)))]
    by_label = dict(zip(labels, direct, strict=False))
    likelihoods = Likelihoods(by_label, (dict(zip(labels, free, strict=False)),))
    for scoring in ("direct", "calibrated"):
        found = probabilities(likelihoods, scoring)
        assert math.fsum(found.values()) == pytest.approx(1)


def test_the_first_of_equals_is_best():
    assert best({"b": 0.5, "a": 0.5}) == "b"
