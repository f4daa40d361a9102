"""`chatapp eval`: measures prompt files, tasks and models, with confidence intervals."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chatapp.commands import options as shared
from chatapp.commands.console import FAILED, complain, interruptible, progress, write, write_json
from chatapp.commands.loading import load
from chatapp.commands.measuring.tasks import TEST_HELP, measure_model, print_table, read_tasks
from chatapp.common.command_groups import number_option
from chatapp.common.extras import require
from chatapp.common.foreign import printable
from chatapp.common.userfiles import UserError, reason, write_whole

if TYPE_CHECKING:
    from chatapp.common.settings import Settings
    from chatapp.tasks.evaluation.evaluate import Grid, Task
    from chatapp.tasks.evaluation.report import Result

# Items of a generated task: to answer, and to show as demonstrations.
_ITEMS = 500

_NO_USE = {
    "files": ("words", "generate"),
    "task": ("test", "strict"),
    "lambada": (
        *("test", "words", "generate", "shots", "select", "order", "score", "style", "report"),
        *("instruction", "strict"),
    ),
}
"""Options without a meaning, for each kind of measurement."""

FilesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="Prompt files, pools, or names of the library.",
        show_default=False,
        autocompletion=shared.prompts,
    ),
]
TestOption = Annotated[Path | None, typer.Option(help=TEST_HELP)]
TaskOption = Annotated[
    str | None,
    typer.Option(
        help="Tasks of the GPT-3 paper, such as 2D+,RW; a wrong name lists them all.",
        autocompletion=shared.paper_tasks,
    ),
]
WordsOption = Annotated[Path | None, typer.Option(help="Words for --task to scramble.")]
GenerateOption = Annotated[
    Path | None,
    typer.Option(help="Only write the items of --task into this folder, as JSON Lines."),
]
LambadaOption = Annotated[
    Path | None, typer.Option(help="Passages whose last word is predicted (.jsonl or lines).")
]
SeedsOption = Annotated[
    int, typer.Option(min=1, help="Number of runs of each setting that involves chance.")
]
ModelsOption = Annotated[
    str | None,
    typer.Option(
        help="One model, or several to compare, such as bundled,smollm2-135m.",
        autocompletion=shared.models,
    ),
]
LimitOption = Annotated[
    int | None, typer.Option(min=1, help="Use at most this many test items, sampled with the seed.")
]
ReportOption = Annotated[
    Path | None, typer.Option(help="Folder for report.json, answers.jsonl and accuracy.png.")
]


@shared.prompt_options(several=True)
def evaluate(
    context: typer.Context,
    files: FilesArgument = None,
    test: TestOption = None,
    task: TaskOption = None,
    words: WordsOption = None,
    generate: GenerateOption = None,
    lambada: LambadaOption = None,
    seeds: SeedsOption = 1,
    seed: Annotated[int, number_option("seed", meaning="the first seed, also used by --limit")] = 0,
    limit: LimitOption = None,
    report: ReportOption = None,
    strict: shared.StrictOption = False,
    model: ModelsOption = None,
    concurrency: shared.ConcurrencyOption = None,
    all_columns: Annotated[
        bool, typer.Option("--all-columns", help="Show the least used columns of the table, too.")
    ] = False,
    as_json: shared.JsonOption = False,
) -> None:
    """Measure prompt files in many settings, or a model by standard tasks."""
    from chatapp.common.settings import load_settings

    _refuse(context.params)
    from chatapp.tasks.evaluation.evaluate import Grid
    from chatapp.tasks.settings import SETTINGS

    settings = load_settings({"model": model})
    if lambada is not None:
        with interruptible("interrupted"):
            _lambada(lambada, settings, limit, seed, concurrency, as_json=as_json)
        return
    if task is not None:
        tasks = _generated(task.split(","), words, limit or _ITEMS, seed)
    else:
        tasks = read_tasks(files or [], test, limit, seed, strict=strict)
    if generate is not None:
        _write_items(tasks, generate)
        return
    values = {name: _split_list(context.params[name]) for name in SETTINGS}
    grid = Grid.of(values, seeds, seed)
    hint = f"; run the same command again to continue {report}" if report else ""
    with interruptible(f"interrupted{hint}"):
        results = _evaluate_tasks(tasks, grid, settings, report, concurrency)
        config = _config(context.params, settings, grid)
        _tell(results, tasks, config, report, as_json=as_json, all_columns=all_columns)


def _refuse(options: dict[str, Any]) -> None:
    """Raise UserError for options that exclude each other, or whose package is missing."""
    named = [name for name in _NO_USE if options[name]]
    if len(named) != 1:
        raise UserError("expected prompt files with --test, or --task, or --lambada")
    (what,) = named
    for name in _NO_USE[what]:
        if options[name] not in (None, False):
            described = "prompt files" if what == "files" else f"--{what}"
            raise UserError(f"--{name} cannot be used with {described}")
    if options["report"]:
        require("matplotlib")


def _config(options: dict[str, Any], settings: "Settings", grid: "Grid") -> dict[str, Any]:
    """The options, as plain data."""
    test = options["test"]
    return {
        "model": settings.model,
        "files": options["files"],
        "test": None if test is None else str(test),
        "task": options["task"],
        "shots": grid.shots,
        "select": grid.select,
        "order": grid.order,
        "score": grid.scoring,
        "style": grid.style,
        "instruction": grid.instruction,
        "seeds": grid.seeds,
        "seed": grid.seed,
        "limit": options["limit"],
    }


def _split_list(value: str | None) -> tuple[str, ...]:
    """The parts between commas, without repetitions."""
    if value is None:
        return ()
    return tuple(dict.fromkeys(part.strip() for part in value.split(",")))


def _generated(names: Sequence[str], words: Path | None, n: int, seed: int) -> "list[Task]":
    """The paper's tasks; the test items and the pool are disjoint."""
    from chatapp.tasks.evaluation import gpt3_tasks
    from chatapp.tasks.evaluation.evaluate import Task
    from chatapp.tasks.evaluation.gpt3_tasks import read_words
    from chatapp.tasks.evaluation.inputs import Item

    own = read_words(words) if words else ()
    tasks = []
    for name in dict.fromkeys(map(str.strip, names)):
        items = gpt3_tasks.generate(name, n + _ITEMS, seed, own)
        to_ask = [Item(item.input, item.output, line) for line, item in enumerate(items[:n], 1)]
        tasks.append(Task(name, gpt3_tasks.task_prompt(name, items[n:]), to_ask))
    return tasks


def _write_items(tasks: "Sequence[Task]", folder: Path) -> None:
    from chatapp.tasks.evaluation.gpt3_tasks import published_row

    for task in tasks:
        lines = [json.dumps(published_row(item)) + "\n" for item in task.items]
        path = folder / f"{task.name}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, "".join(lines))
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {reason(error)}") from None
        write(f"{path}: {len(lines)} items\n")


def _evaluate_tasks(
    tasks: "Sequence[Task]",
    grid: "Grid",
    settings: "Settings",
    folder: Path | None,
    concurrency: int | None,
) -> "list[Result]":
    """The results of one model, or of several, each with a folder of its own in the report."""

    from chatapp.engine.models.description import read_sizes

    names = _split_list(settings.model)
    if len(names) == 1:
        return measure_model(tasks, grid, settings, folder, concurrency)[0]
    folders = {name: re.sub(r"[^\w.-]+", "-", name).strip("-.") for name in names}
    if len(set(folders.values())) < len(names):
        raise UserError(f"--model holds {settings.model!r}, in which two names are alike")
    measured: list[Result] = []
    for name in names:
        own = folder / folders[name] if folder else None
        chosen = replace(settings, model=name)
        of_model, files = measure_model(tasks, grid, chosen, own, concurrency)
        count = read_sizes(files).parameters if files else None
        measured += [replace(result, model=name, parameters=count) for result in of_model]
    return measured


def _tell(
    results: "Sequence[Result]",
    tasks: "Sequence[Task]",
    config: dict[str, Any],
    folder: Path | None,
    *,
    as_json: bool,
    all_columns: bool,
) -> None:
    """Write the results to standard output, and into the folder."""

    from chatapp.tasks.evaluation.plot import plot
    from chatapp.tasks.evaluation.report import SETTING, compared, document

    pairs = compared(tasks, results)
    report = document(config, results)
    if pairs:
        report["comparisons"] = [
            dict(zip((*SETTING, "scoring", "metric"), one.setting, strict=True))
            | {"first": one.model, "second": other.model}
            | asdict(difference)
            for one, other, difference in pairs
        ]
    if folder:
        try:
            write_whole(folder / "report.json", json.dumps(report, indent=2) + "\n")
            plot(results, folder / "accuracy.png")
        except OSError as error:
            raise UserError(f"{folder}: cannot be written: {reason(error)}") from None
    if as_json:
        write_json(report)
        return
    print_table(results, all_columns=all_columns)
    if pairs:
        write("\nThe same items, 95 % intervals of the difference:\n")
    for one, other, difference in pairs:
        task, shots, *rest, _ = one.setting
        setting = ", ".join((task, f"{shots} shots", *(x for x in rest if x not in ("none", "on"))))
        words = difference.words(one.model, other.model)
        write(printable(f"{one.metric} ({setting}), {words}") + "\n")


def _lambada(
    path: Path,
    settings: "Settings",
    limit: int | None,
    seed: int,
    concurrency: int | None,
    *,
    as_json: bool,
) -> None:

    from chatapp.tasks.evaluation.evaluate import subset
    from chatapp.tasks.evaluation.language_modelling import lambada, read_passages

    passages = subset(read_passages(path), limit, seed)
    model = load(settings.model, "float32", settings.device, concurrency)
    with progress("LAMBADA") as show:
        result = lambada(model, [passage.input for passage in passages], show)
    for index, message in result.failures.items():
        complain(f"{path}, line {passages[index].line}: {message}")
    failed = len(result.failures)
    if as_json:
        figures = {name: asdict(figure) for name, figure in result.figures.items()}
        n = len(passages) - failed
        write_json({"model": settings.model, "n": n, "failed": failed, **figures})
    else:
        for name, figure in result.figures.items():
            write(f"{name}: accuracy {figure.accuracy:.4f}, perplexity {figure.perplexity:.2f}\n")
    if failed:
        complain(f"{failed} of {len(passages)} passages failed and are not counted")
        raise typer.Exit(FAILED)
