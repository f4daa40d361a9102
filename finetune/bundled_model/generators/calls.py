"""Questions whose numbers are too large to compute, answered by a call of the calculator.

What small numbers alone do not teach is to copy the numbers, digit by digit, into the call and its
result into the answer.

Invariant: a sum, difference or product that `tasks` asks for without a call is not here.
"""

import random
from collections.abc import Iterator
from typing import Any

from finetune.bundled_model.generators.dialogues import Turns, chat_row, typed
from finetune.bundled_model.generators.tasks import filled
from finetune.bundled_model.generators.words import table

_MOST_DIGITS = 6
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}


def call_question(draw: random.Random) -> tuple[str, str]:
    """A question, and the answer with its call and its result."""
    kind = draw.choice(tuple(_SIGNS))
    in_words = draw.random() < 0.5
    a, b = _numbers(draw, kind, bare=not in_words)
    result = {"add": a + b, "subtract": a - b, "multiply": a * b, "divide": a // b}[kind]
    call = f"<<{a}{_SIGNS[kind]}{b}={result}>>{result}"
    language = table("language")["stories"]
    fields = {
        "a": str(a),
        "b": str(b),
        "who": draw.choice([*language["he"], *language["she"]]),
        "what": draw.choice(language["things"]) + "s",
    }
    wording = draw.choice(table("calls")[kind]["story" if in_words else "bare"])
    return filled(wording, fields), f"{call} {fields['what']}." if in_words else call


def _numbers(draw: random.Random, kind: str, *, bare: bool) -> tuple[int, int]:
    """Two numbers of up to six digits, for a bare question too large to be computed without."""
    while True:
        a, b = (draw.randrange(2, 10 ** draw.randint(1, _MOST_DIGITS)) for _ in range(2))
        if kind == "divide":
            a, b = max(a, b) // min(a, b) * min(a, b), min(a, b)
        elif kind == "subtract":
            a, b = max(a, b), min(a, b)
        limit = 99 if kind in ("multiply", "divide") else 999
        if not bare or max(a, b) > limit:
            return a, b


def rows(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield `count` chats of one to three such questions."""
    draw = random.Random(seed)
    for _ in range(count):
        turns: Turns = []
        for _ in range(draw.choice((1, 1, 2, 3))):
            question, answer = call_question(draw)
            turns += [typed(draw, question), answer]
        yield chat_row(turns)
