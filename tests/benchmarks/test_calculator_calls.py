"""The bundled model on sums and products, with the calculator and without.

Two hundred problems in the wording that it was taught calls in, their numbers drawn by their count
of digits; answers are drawn without chance. Right is an answer whose last number is the result;
copied, a call that holds the numbers of the problem.
Run with `pytest -m benchmark -s tests/benchmarks/test_calculator_calls.py`.
"""

import random
import re

import pytest
from scale import is_tiny, sized

from chatapp.dialogue.oneshot import ask, ask_with_tools
from chatapp.dialogue.tool_calls import Toolbox
from chatapp.dialogue.writers.choosing import choose_template
from chatapp.engine.model import Sampling
from chatapp.models.loading import load_model
from chatapp.tools.registry import find_tools

PROBLEMS = sized(200, 2)
DIGITS = sized((1, 2, 3, 4, 5, 6), (1, 2))
NAMES, THINGS = ("Anna", "Tom", "Mary", "Ben"), ("books", "coins", "hats", "lamps")


def problem(draw: random.Random, digits: int) -> tuple[str, str, int]:
    """A question, the call that answers it, and the answer."""
    who, what = draw.choice(NAMES), draw.choice(THINGS)
    a, b = (draw.randrange(max(2, 10 ** (digits - 1)), 10**digits) for _ in range(2))
    end = f"How many {what} does {who} have now?"
    if draw.random() < 0.5:
        return f"{who} has {a} {what} and gets {b} more. {end}", f"{a}+{b}", a + b
    return f"{who} has {a} boxes with {b} {what} in each. {end}", f"{a}*{b}", a * b


def last_number(reply: str) -> str:
    return (re.findall(r"\d+", reply) or [""])[-1]


@pytest.mark.benchmark
def test_sums_and_products() -> None:
    model = load_model("bundled")
    template = choose_template(model, "")
    toolbox = Toolbox(find_tools().chosen(["calculator"]), lambda *given: False)
    sampling = Sampling(temperature=0.0, max_tokens=40, seed=0)
    draw = random.Random(0)
    rows = {digits: [0, 0, 0, 0] for digits in DIGITS}
    for number in range(PROBLEMS):
        digits = DIGITS[number % len(DIGITS)]
        question, call, answer = problem(draw, digits)
        without = "".join(event.text for event in ask(model, template, question, sampling=sampling))
        events = ask_with_tools(model, template, question, toolbox, sampling=sampling)
        reply = "".join(event.text for event in events)
        found = last_number(without), last_number(reply)
        facts = (1, found[0] == str(answer), found[1] == str(answer), f"<<{call}=" in reply)
        rows[digits] = [sum(pair) for pair in zip(rows[digits], facts, strict=True)]
    print("\ndigits  problems  right alone  right with it  copied")
    for digits, (count, alone, with_it, copied) in rows.items():
        print(f"{digits:6}  {count:8}  {alone:11}  {with_it:13}  {copied:6}")
    total = [sum(column) for column in zip(*rows.values(), strict=True)]
    print("   all  {:8}  {:11}  {:13}  {:6}".format(*total))
    assert total[0] == PROBLEMS
    assert is_tiny() or total[2] >= total[1]
