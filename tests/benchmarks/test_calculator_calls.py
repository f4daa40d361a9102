"""The bundled model on sums and products, without the calculator and with it.

For each number of digits, a hundred problems in the wording that it was taught calls in, and a
hundred in the wordings of `tool_questions`; answers are drawn without chance. own: the model opens
the call. scored: the program chooses the call by likelihood, as `ask --tools` does by default.
Right is an answer whose last number is the result.
Run with `pytest -m benchmark -s tests/benchmarks/test_calculator_calls.py`.
"""

import random
import re
from collections import Counter
from collections.abc import Callable

import pytest
from scale import is_tiny, sized
from tool_questions import sum_question

from chatapp.dialogue.events import Options
from chatapp.dialogue.tool_calls import Toolbox, chooser_of
from chatapp.dialogue.tools.registry import find_tools
from chatapp.dialogue.turn import answer
from chatapp.dialogue.writers.choosing import choose_template, writer_for
from chatapp.engine.model import Sampling
from chatapp.engine.models.loading import load_model

PROBLEMS = sized(100, 1)
DIGITS = sized((1, 2, 3, 4, 5, 6), (1, 6))
NAMES, THINGS = ("Anna", "Tom", "Mary", "Ben"), ("books", "coins", "hats", "lamps")


def taught_question(draw: random.Random, number: int, a: int, b: int) -> tuple[str, int]:
    """A question in the wording of the training, and its answer."""
    who, what = draw.choice(NAMES), draw.choice(THINGS)
    end = f"How many {what} does {who} have now?"
    if number % 2:
        return f"{who} has {a} {what} and gets {b} more. {end}", a + b
    return f"{who} has {a} boxes with {b} {what} in each. {end}", a * b


def last_number(reply: str) -> str:
    return (re.findall(r"\d+", reply) or [""])[-1]


@pytest.mark.benchmark
@pytest.mark.parametrize("question_of", [taught_question, sum_question])
def test_sums_and_products(question_of: Callable[..., tuple[str, int]]) -> None:
    model = load_model("bundled")
    template = choose_template(model, "")
    tools = find_tools().chosen(["calculator"])
    choose = chooser_of(model, writer_for(model, template), tools)
    assert choose is not None
    ways = {
        "own": Toolbox(tools, lambda *given: False),
        "scored": Toolbox(tools, lambda *given: False, choose),
    }
    sampling = Sampling(temperature=0.0, max_tokens=40, seed=0)
    draw = random.Random(0)
    right: Counter[tuple[int, str]] = Counter()
    for digits in DIGITS:
        for number in range(PROBLEMS):
            b, a = sorted(draw.randrange(max(2, 10 ** (digits - 1)), 10**digits) for _ in range(2))
            question, result = question_of(draw, number, a, b)
            alone = answer(model, template, question, Options(sampling))
            replies = {"without": "".join(event.text for event in alone)}
            for way, toolbox in ways.items():
                events = answer(model, template, question, Options(sampling, toolbox=toolbox))
                replies[way] = "".join(event.text for event in events)
            right.update(
                (digits, way) for way, reply in replies.items() if last_number(reply) == str(result)
            )
    print(f"\n{question_of.__name__}, right of {PROBLEMS}\ndigits  without  own  scored")
    for digits in DIGITS:
        counts = (right[digits, way] for way in ("without", "own", "scored"))
        print("{:6}  {:7}  {:3}  {:6}".format(digits, *counts))
    assert is_tiny() or all(right[digits, "scored"] >= 0.9 * PROBLEMS for digits in DIGITS)
