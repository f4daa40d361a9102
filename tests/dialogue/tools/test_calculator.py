"""The calculator: exact, bounded, and no language that anything could be run in."""

import random
from fractions import Fraction

import pytest

from chatapp.dialogue.tools.built_in import calculate, in_digits
from chatapp.dialogue.tools.tool import ToolError


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("48*76", "3648"),
        ("48 x 76 =", "3648"),
        ("48 × 76 − 1", "3647"),
        ("1,234,567 + 1", "1234568"),
        ("0.1 + 0.2", "0.3"),
        ("-2**2", "-4"),
        ("2^-3", "0.125"),
        ("2**3**2", "512"),
        ("(1 + 2) * -(3 - 5)", "6"),
        ("7 // 2 + 7 % 4 + -7 mod 4", "7"),
        ("15% of 80", "12"),
        ("80 + 15%", "80.15"),
        ("10% - 3", "-2.9"),
        ("1/8", "0.125"),
        ("10/3", "3.33333333333333… (10/3)"),
        ("-1/3", "-0.333333333333333… (-1/3)"),
        ("6.02e23 * 2", "1204000000000000000000000"),
        ("1/1024", "0.0009765625"),
        ("(-1)**1000000000000", "1"),
        ("99999999999999999999 * 99999999999999999999", str(99999999999999999999**2)),
        (".5 + 1.", "1.5"),
    ],
)
def test_values_are_exact(expression, expected):
    assert in_digits(calculate(expression)) == expected


def test_sums_drawn_at_random_are_those_of_python():
    draw = random.Random(0)
    for _ in range(500):
        numbers = [draw.randrange(1, 10 ** draw.randint(1, 6)) for _ in range(4)]
        signs = [draw.choice(["+", "-", "*", "/", "//", "%"]) for _ in range(3)]
        text = "".join(f"{n} {s} " for n, s in zip(numbers, [*signs, ""], strict=True)).strip()
        # Python's own arithmetic on fractions, operator by operator as it ranks them.
        exact = " ".join(f"Fraction({n}) {s}" for n, s in zip(numbers, [*signs, ""], strict=True))
        assert calculate(text) == eval(exact, {"Fraction": Fraction}), text


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "where a number should be"),
        ("1 +", "where a number should be"),
        ("(1", "not closed"),
        ("1 2", "where an operator should be"),
        ("1/0", "divides by zero"),
        ("0**-1", "divides by zero"),
        ("1 % 0", "divides by zero"),
        ("2**0.5", "whole number"),
        ("9**9**9**9", "3,900 digits"),
        ("2**99999999999", "3,900 digits"),
        ("1e9999", "beyond 3,900"),
        ("9" * 1_001, "longer than 1,000"),
        ("(" * 400 + "1" + ")" * 400, "deeper than 50"),
        ("-" * 900 + "1", "deeper than 50"),
        ("2" + "**2" * 300, "3,900 digits|deeper than 50"),
        ("__import__('os').system('true')", "cannot be calculated with"),
        ("abs(1)", "cannot be calculated with"),
        ("1; 2", "cannot be calculated with"),
        ("'a'*9", "cannot be calculated with"),
        ("\x1b[31m1", "cannot be calculated with"),
    ],
)
def test_what_cannot_be_calculated_is_told(expression, problem):
    with pytest.raises(ToolError, match=problem):
        calculate(expression)


@pytest.mark.parametrize(
    ("expression", "exact"),
    [
        ("9" * 1_000, Fraction(10**1_000 - 1)),
        ("1/7+" * 200 + "1", Fraction(207, 7)),
        ("*".join(["9" * 50] * 19), Fraction(int("9" * 50)) ** 19),
        ("7**4000", Fraction(7) ** 4000),
    ],
    ids=["digits", "sum", "product", "power"],
)
def test_the_longest_expressions_are_exact(expression, exact):
    value = calculate(expression)
    assert value == exact
    assert len(in_digits(value)) <= 3_900
