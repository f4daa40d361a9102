"""Write three-digit subtraction problems for `subtraction.toml`.

    python -m finetune.recipes.subtraction OUT [--train N] [--test N] [--seed N]

OUT receives subtraction_train.jsonl and subtraction_test.jsonl, a problem and its answer a line, in
the wording of the GPT-3 paper.
"""

from pathlib import Path
from typing import Annotated

import typer

from chatapp.rows.examples import Example
from chatapp.tasks.evaluation.gpt3_tasks import generate
from finetune.recipes import run, write_rows

TASK = "3D-"


def problems(train: int, test: int, seed: int) -> dict[str, list[Example]]:
    """Different problems for training and for the test."""
    tested = generate(TASK, test, 0)
    tested_inputs = {problem.input for problem in tested}
    drawn = generate(TASK, train + test, seed + 1)
    return {
        "train": [problem for problem in drawn if problem.input not in tested_inputs][:train],
        "test": tested,
    }


def build(
    out: Annotated[Path, typer.Argument(help="folder to write to")],
    train: Annotated[int, typer.Option(min=1, max=100_000, help="problems to learn from")] = 4000,
    test: Annotated[int, typer.Option(min=1, max=700, help="problems to measure on")] = 200,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Write training and test problems."""
    for name, part in problems(train, test, seed).items():
        rows = [{"parts": [problem.input, f" {problem.output}"]} for problem in part]
        write_rows(out / f"subtraction_{name}.jsonl", rows, "problems")


if __name__ == "__main__":
    run(build)
