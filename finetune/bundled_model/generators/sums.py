"""Sums in everyday words, and problems worked out with calculator calls: <<48+76=124>>.

Keep: the answer is computed from the numbers that stand in the question.
"""

import random

from finetune.bundled_model.generators.content import table

Problem = tuple[dict[str, str], str]
"""Fields of a wording, and the answer."""


def _two(draw: random.Random, most: int) -> tuple[int, int]:
    return draw.randrange(10 ** draw.randint(1, most)), draw.randrange(10 ** draw.randint(1, most))


def sum_of_two(draw: random.Random) -> Problem:
    """Two numbers of up to three digits."""
    a, b = _two(draw, 3)
    return {"x": str(a), "y": str(b)}, str(a + b)


def difference(draw: random.Random) -> Problem:
    """Two numbers of up to three digits; the result may be negative."""
    a, b = _two(draw, 3)
    return {"x": str(a), "y": str(b)}, str(a - b)


def product(draw: random.Random) -> Problem:
    """Two numbers of up to two digits, one of them at most 12."""
    a, b = draw.randrange(13), draw.randrange(10 ** draw.randint(1, 2))
    if draw.random() < 0.5:
        a, b = b, a
    return {"x": str(a), "y": str(b)}, str(a * b)


def calculator(draw: random.Random) -> Problem:
    """A short story with a sum in it; the answer calls the calculator, as in GSM8K."""
    language = table("language")
    a, b = draw.randrange(2, 100), draw.randrange(2, 100)
    who = draw.choice([*language["stories"]["he"], *language["stories"]["she"]])
    what = draw.choice(language["stories"]["things"]) + "s"
    match draw.choice(("more", "fewer", "times")):
        case "more":
            result, call = a + b, f"{a}+{b}"
            text = f"{who} has {a} {what} and gets {b} more."
        case "fewer":
            a, b = max(a, b), min(a, b)
            result, call = a - b, f"{a}-{b}"
            text = f"{who} has {a} {what} and gives away {b}."
        case _:
            a = a % 9 + 2
            result, call = a * b, f"{a}*{b}"
            text = f"{who} has {a} boxes with {b} {what} in each."
    question = f"{text} How many {what} does {who} have now?"
    return {"x": question}, f"{who} has <<{call}={result}>>{result} {what}."
