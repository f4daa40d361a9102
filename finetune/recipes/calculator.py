"""Write products of two numbers for `calculator.toml`: half of them in stories, half bare.

    python -m finetune.recipes.calculator OUT [--most N] [--train N] [--test N] [--seed N]

OUT receives calculator_train.jsonl and calculator_test.jsonl, a question and its result a line.

Invariant: no question is in both, and the same options give the same files.
"""

import json
import random
from pathlib import Path
from typing import Annotated

import typer

from chatapp.common.userfiles import write_whole
from finetune.recipes import run

WORDINGS = (
    "{who} has {a} boxes with {b} {what} in each. How many {what} does {who} have?",
    "There are {a} rows of {b} {what}. How many {what} are there?",
    "{who} buys {b} {what} every day. How many {what} does {who} buy in {a} days?",
    "What is {a} * {b}?",
    "How much is {a} times {b}?",
    "{a} * {b} =",
)
_NAMES = ("Anna", "Tom", "Mary", "Ben", "Lily", "Sam")
_THINGS = ("books", "coins", "hats", "lamps", "shells", "apples")


def questions(count: int, most: int, seed: int) -> list[dict[str, str]]:
    """`count` different rows, with numbers from 2 to `most`."""
    draw = random.Random(seed)
    rows: dict[str, dict[str, str]] = {}
    while len(rows) < count:
        a, b = draw.randint(2, most), draw.randint(2, most)
        who, what = draw.choice(_NAMES), draw.choice(_THINGS)
        text = draw.choice(WORDINGS).format(a=a, b=b, who=who, what=what)
        rows[text] = {"prompt": text, "completion": str(a * b)}
    return list(rows.values())


def build(
    out: Annotated[Path, typer.Argument(help="folder to write to")],
    most: Annotated[int, typer.Option(min=99, max=10**9, help="the largest number")] = 99,
    train: Annotated[int, typer.Option(min=1, max=20_000, help="questions to learn from")] = 4000,
    test: Annotated[int, typer.Option(min=1, max=1000, help="questions to measure on")] = 100,
    seed: int = 0,
) -> None:
    """Write training and test questions."""
    out.mkdir(parents=True, exist_ok=True)
    rows = questions(train + test, most, seed)
    for name, part in (("train", rows[test:]), ("test", rows[:test])):
        path = out / f"calculator_{name}.jsonl"
        write_whole(path, "".join(json.dumps(row) + "\n" for row in part))
        print(f"{path}: {len(part):,} questions")


if __name__ == "__main__":
    run(build)
