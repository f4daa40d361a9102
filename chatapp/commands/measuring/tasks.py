"""What `eval` and `experiment` share: reading tasks, measuring a model, printing the results.

Invariant: a model is measured in float32, in which likelihoods of labels are exact.
"""

import io
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from chatapp.commands.console import progress, write
from chatapp.commands.loading import load, prompt_path, report_pool
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.common.settings import Settings
    from chatapp.engine.files.model_files import ModelFiles
    from chatapp.tasks.evaluation.evaluate import Grid, Task
    from chatapp.tasks.evaluation.report import Result

TEST_HELP = "Test items with their gold answers (.jsonl, .csv)."


def read_tasks(
    files: Sequence[str], test: Path | None, limit: int | None, seed: int, *, strict: bool
) -> "list[Task]":
    """Prompt files with at most `limit` of the test items, drawn by the seed. Raises UserError."""
    from chatapp.tasks.evaluation.evaluate import Task, subset
    from chatapp.tasks.evaluation.inputs import read_test
    from chatapp.tasks.files.promptfile import load_prompt

    if test is None:
        raise UserError("there are no test items; pass a file of them with --test")
    tasks: dict[str, Task] = {}
    for file in files:
        prompt = load_prompt(prompt_path(file))
        name = prompt.path.stem
        if name in tasks:
            raise UserError(f"{file}: another prompt file is named {name!r} as well; rename one")
        report_pool(prompt.pool, strict=strict)
        items = subset(read_test(test, prompt.columns), limit, seed)
        tasks[name] = Task(name, prompt, items, str(test))
    return list(tasks.values())


def measure_model(
    tasks: "Sequence[Task]",
    grid: "Grid",
    settings: "Settings",
    folder: Path | None,
    concurrency: int | None = None,
) -> "tuple[list[Result], ModelFiles | None]":
    """The results of a model, and its files; a server's model has none."""
    from chatapp.dialogue.prompt_files import measure_tasks
    from chatapp.tasks.evaluation.evaluate import plan
    from chatapp.tasks.evaluation.journal import Journal

    if grid.scoring and not any(task.prompt.labels or task.prompt.choices for task in tasks):
        raise UserError("--score needs labels or choices, and none of these tasks has any")
    for task in tasks:
        plan(task, grid)  # refuses impossible settings before the model is loaded
    model = load(settings.model, "float32", settings.device, concurrency)
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(folder / "answers.jsonl")) if folder else None
        return measure_tasks(model, tasks, grid, journal, progress), model.files


def print_table(results: "Sequence[Result]", *, all_columns: bool = True) -> None:
    from rich.console import Console

    from chatapp.tasks.evaluation.report import explanation, table

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    shown = table(results, width, all_columns=all_columns)
    # As wide as the table: a terminal may break its lines, but no figure is cut.
    file = io.StringIO()
    console = Console(file=file, width=10_000)
    console.width = console.measure(shown).maximum
    console.print(shown)
    write(f"{file.getvalue()}\n{explanation(shown)}")
