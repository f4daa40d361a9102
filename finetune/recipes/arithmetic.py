"""Write addition and subtraction problems for `arithmetic.toml`.

    python -m finetune.recipes.arithmetic OUT [--digits N] [--train N] [--test N] [--seed N]

OUT receives arithmetic_train.jsonl and arithmetic_test.jsonl, a prompt and its completion a
line.
"""

import random
from pathlib import Path
from typing import Annotated

import typer

from finetune.recipes import run, write_rows

WORDINGS = {
    "+": ("What is {a} + {b}?", "{a} + {b} =", "Add {a} and {b}.", "How much is {a} plus {b}?"),
    "-": (
        "What is {a} - {b}?",
        "{a} - {b} =",
        "Subtract {b} from {a}.",
        "How much is {a} minus {b}?",
    ),
}


def worked(sign: str, a: int, b: int) -> str:
    """A sum or difference as on paper, the last digits first, and the result after a colon.

    27 + 45 is "7+5=12, 2+4+1=7: 72"; 52 - 27 is "12-7=5, 5-2-1=2: 25". A small model learns each of
    these steps from far fewer examples than the result alone.
    """
    steps = []
    carried = 0
    width = len(str(max(a, b)))
    for x, y in zip(f"{a:0{width}}"[::-1], f"{b:0{width}}"[::-1], strict=True):
        first, second = int(x), int(y)
        last = f"{sign}1" if carried else ""
        if sign == "+":
            result = first + second + carried
            carried = result // 10
        else:
            borrowed = first < second + carried
            first += 10 * borrowed
            result = first - second - carried
            carried = int(borrowed)
        steps.append(f"{first}{sign}{second}{last}={result}")
    return f"{', '.join(steps)}: {a + b if sign == '+' else a - b}"


def problem(sign: str, a: int, b: int, wording: str) -> dict[str, str]:
    """One row; a difference is never negative."""
    if sign == "-" and a < b:
        a, b = b, a
    return {"prompt": wording.format(a=a, b=b), "completion": worked(sign, a, b)}


def problems(digits: int, count: int, seed: int) -> list[dict[str, str]]:
    """`count` different problems with numbers of up to `digits` digits, each length
    equally likely."""
    draw = random.Random(seed)
    seen: set[tuple[str, int, int]] = set()
    rows: list[dict[str, str]] = []
    while len(rows) < count:
        sign = draw.choice("+-")
        a, b = (draw.randrange(10 ** draw.randint(1, digits)) for _ in range(2))
        known = (sign, min(a, b), max(a, b))
        if known not in seen:
            seen.add(known)
            rows.append(problem(sign, a, b, draw.choice(WORDINGS[sign])))
    return rows


def build(
    out: Annotated[Path, typer.Argument(help="folder to write to")],
    digits: Annotated[int, typer.Option(min=1, max=9, help="of the largest number")] = 2,
    train: Annotated[int, typer.Option(min=1, help="problems to learn from")] = 4000,
    test: Annotated[int, typer.Option(min=1, help="problems to measure on")] = 200,
    seed: int = 0,
) -> None:
    """Write training and test problems."""
    # As many as there are pairs of numbers, each with a sum and a difference: up to half of all
    # problems are drawn quickly.
    numbers = 10**digits
    most = numbers * (numbers + 1) // 2
    if train + test > most:
        raise typer.BadParameter(
            f"numbers of {digits} digits make too few problems for {train + test:,}; "
            f"ask for {most:,} or fewer"
        )
    rows = problems(digits, train + test, seed)
    for name, part in (("train", rows[test:]), ("test", rows[:test])):
        write_rows(out / f"arithmetic_{name}.jsonl", part, "problems")


if __name__ == "__main__":
    run(build)
