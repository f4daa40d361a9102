"""Arithmetic in the GPT-3 paper's phrasing, in few-shot prompts, and in everyday words.

Problems in words are worked out with calculator calls: <<48+76=124>>; the answer is computed from
the numbers in the question.

Invariant: no problem of the paper's evaluations (the first ones of seed 0, see
chatapp.tasks.evaluation.gpt3_tasks) is drawn in its phrasing;
chats and single questions of other modules
may contain it in other words.
"""

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from chatapp.tasks.evaluation.gpt3_tasks import generate, task_prompt
from finetune.bundled_model.generators.fewshot import few_shot_row
from finetune.bundled_model.generators.words import table

# How often each task of the paper is drawn: those that so small a model learns.
SHARES = {"2D+": 12, "2D-": 12, "2Dx": 4, "1DC": 4, "3D+": 4, "3D-": 4}
_TESTED = 700


@cache
def tested() -> frozenset[str]:
    """The held-out inputs of all tasks: a problem of "up to three digits" may be one of two."""
    return frozenset(item.input for name in SHARES for item in generate(name, _TESTED, 0))


def problem(name: str, draw: random.Random) -> tuple[str, str]:
    """A training problem of a task of the paper, and its answer."""
    while True:
        item = generate(name, 1, draw.randrange(1, 2**32))[0]
        if item.input not in tested():
            return item.input, item.output


def rows(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Few-shot prompts of 1 to 24 problems: of one task, or, equally often, of several."""
    draw = random.Random(seed)
    names, weights = list(SHARES), list(SHARES.values())
    for _ in range(count):
        shots = draw.choice((1, 2, 4, 8, 16, 24))
        if draw.random() < 0.6:
            chosen = draw.choices(names, weights, k=1) * shots
        else:
            chosen = draw.choices(names, weights, k=shots)
        row = few_shot_row(
            task_prompt(chosen[0], ()), [problem(name, draw) for name in chosen], guessable=True
        )
        assert row is not None
        yield row


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
