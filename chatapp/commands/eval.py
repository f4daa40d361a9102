"""`chatapp eval`: how well prompt files, tasks and models do, in numbers that can be trusted.

Keep: what is printed is computed from the rows of DIR/answers.jsonl, which a second start with
the same files continues.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chatapp.commands import completion
from chatapp.commands.ask import JsonOption, ModelOption, load
from chatapp.commands.console import write, write_json
from chatapp.commands.prompts import interruptible, progress, prompt_path
from chatapp.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.evaluation.evaluate import Grid, Task
    from chatapp.evaluation.report import Result
    from chatapp.settings import Settings

# Items of a generated task: to ask about, and to show as demonstrations.
_ITEMS = 500


def evaluate(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Prompt files, pools, or names of the library.",
            show_default=False,
            autocompletion=completion.prompts,
        ),
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="Test items with their gold answers (.jsonl, .csv).")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Tasks of the GPT-3 paper, as 2D+,RW; all of them are named if wrong.",
            autocompletion=completion.paper_tasks,
        ),
    ] = None,
    words: Annotated[Path | None, typer.Option(help="Words for --task to scramble.")] = None,
    generate: Annotated[
        Path | None,
        typer.Option(help="Only write the items of --task into this folder, as JSON Lines."),
    ] = None,
    lambada: Annotated[
        Path | None, typer.Option(help="Passages whose last word is predicted (.jsonl or lines).")
    ] = None,
    shots: Annotated[str | None, typer.Option(help="Numbers of demonstrations, as 0,1,8.")] = None,
    select: Annotated[
        str | None,
        typer.Option(help="How to choose them: fixed,random,balanced,bm25,knn,knn:minilm,mmr,vote"),
    ] = None,
    order: Annotated[str | None, typer.Option(help="nearest-first,nearest-last,shuffled")] = None,
    score: Annotated[str | None, typer.Option(help="direct,calibrated,channel")] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs of each setting in which anything is drawn.")
    ] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The first seed, and that of --limit.")] = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many test items, drawn by the seed.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Folder for report.json, answers.jsonl and accuracy.png."),
    ] = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure prompt files in many settings, or a model by standard tasks."""
    from chatapp.settings import load_settings

    kinds = [bool(files), task is not None, lambada is not None]
    if sum(kinds) != 1:
        raise UserError("name prompt files with --test, or --task, or --lambada")
    _refuse(
        "--task" if task else "--lambada" if lambada else "prompt files",
        {
            "--test": test,
            "--words": words,
            "--generate": generate,
            "--shots": shots,
            "--select": select,
            "--order": order,
            "--score": score,
            "--report": report,
        },
    )
    settings = load_settings({"model": model})
    if task is not None:
        tasks = _generated(task.split(","), words, limit or _ITEMS, seed)
        if generate is not None:
            _write_items(tasks, generate)
            return
    elif test is not None:
        tasks = _from_files(files or [], test, limit, seed)
    elif lambada is None:
        raise UserError("there are no test items; name a file of them with --test")
    grid = _grid(shots, select, order, score, seeds, seed)
    config = {
        "model": settings.model,
        "files": files,
        "test": None if test is None else str(test),
        "task": task,
        "shots": grid.shots,
        "select": grid.select,
        "order": grid.order,
        "score": grid.scoring,
        "seeds": seeds,
        "seed": seed,
        "limit": limit,
    }
    goes_on = f"; the same command goes on with {report}" if report else ""
    with interruptible(f"interrupted{goes_on}"):
        if lambada is not None:
            _lambada(lambada, settings, limit, seed, as_json=as_json)
        else:
            _evaluate(tasks, grid, settings, config, report, as_json=as_json)


def _refuse(what: str, options: dict[str, object]) -> None:
    """Raise UserError for an option that means nothing for what is measured."""
    no_use = {"prompt files": ("--words", "--generate"), "--task": ("--test",)}
    for option in no_use.get(what, options):
        if options[option] is not None:
            raise UserError(f"{option} means nothing with {what}")


def _grid(
    shots: str | None,
    select: str | None,
    order: str | None,
    score: str | None,
    seeds: int,
    seed: int,
) -> "Grid":
    from chatapp.evaluation.evaluate import Grid
    from chatapp.fewshot.choices import ORDERS, SCORINGS, method_and_encoder, one_of

    for each in _listed(select):
        method_and_encoder(each)
    return Grid(
        shots=tuple(_number(each) for each in _listed(shots)),
        select=_listed(select),
        order=tuple(one_of(each, ORDERS, "--order") for each in _listed(order)),
        scoring=tuple(one_of(each, SCORINGS, "--score") for each in _listed(score)),
        seeds=seeds,
        seed=seed,
    )


def _listed(value: str | None) -> tuple[str, ...]:
    """The parts between commas, each once."""
    if value is None:
        return ()
    return tuple(dict.fromkeys(part.strip() for part in value.split(",")))


def _number(value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise UserError(f"--shots holds {value!r}; expected whole numbers, as in 0,1,8")
    return int(value)


def _from_files(files: Sequence[str], test: Path, limit: int | None, seed: int) -> "list[Task]":
    from chatapp.evaluation.evaluate import Task, subset
    from chatapp.evaluation.inputs import read_test
    from chatapp.prompting.promptfile import load_prompt

    tasks: dict[str, Task] = {}
    for file in files:
        prompt = load_prompt(prompt_path(file))
        name = prompt.path.stem
        if name in tasks:
            raise UserError(f"{file}: another prompt file is named {name!r} as well; rename one")
        items = subset(read_test(test, prompt.labels), limit, seed)
        tasks[name] = Task(name, prompt, items, str(test))
    return list(tasks.values())


def _generated(names: Sequence[str], words: Path | None, n: int, seed: int) -> "list[Task]":
    """The paper's tasks; the items to ask about and the pool have nothing in common."""
    from chatapp.evaluation import gpt3_tasks as generators
    from chatapp.evaluation.evaluate import Task
    from chatapp.evaluation.inputs import Item

    own = generators.read_words(words) if words else ()
    tasks = []
    for name in dict.fromkeys(each.strip() for each in names):
        items = generators.generate(name, n + _ITEMS, seed, own)
        asked = [Item(item.input, item.output, line) for line, item in enumerate(items[:n], 1)]
        tasks.append(Task(name, generators.task_prompt(name, items[n:]), asked))
    return tasks


def _write_items(tasks: "Sequence[Task]", folder: Path) -> None:
    from chatapp.evaluation.gpt3_tasks import published_row

    for task in tasks:
        lines = [json.dumps(published_row(item)) + "\n" for item in task.items]
        path = folder / f"{task.name}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(lines), encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}") from None
        write(f"{path}: {len(lines)} items\n")


def _evaluate(
    tasks: "Sequence[Task]",
    grid: "Grid",
    settings: "Settings",
    config: dict[str, Any],
    folder: Path | None,
    *,
    as_json: bool,
) -> None:
    from contextlib import ExitStack

    from chatapp.evaluation.evaluate import Selectors, evaluate, plan, prompt_of
    from chatapp.evaluation.journal import Journal
    from chatapp.evaluation.report import document, results

    if grid.scoring and not any(task.prompt.labels for task in tasks):
        raise UserError("--score says how labels are scored; none of these tasks has labels")
    cells = [(task, cell) for task in tasks for cell in plan(task, grid)]
    model = load(settings.model, "float32", settings.device)
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(folder / "answers.jsonl")) if folder else None
        with progress("Reading the pools") as show:
            selectors = {task.name: Selectors(task, model, show) for task in tasks}
            for task, cell in cells:
                selectors[task.name].of(prompt_of(task, cell))
        with progress("Evaluating") as show:
            rows = evaluate(model, cells, selectors, journal=journal, progress=show)
    votes = {name: each.voted for name, each in selectors.items()}
    found = results(tasks, rows, grid.scoring, votes)
    made = document(config, found)
    if folder:
        _save(made, found, folder)
    if as_json:
        write_json(made)
    else:
        _print_table(found)


def _save(made: dict[str, Any], found: "Sequence[Result]", folder: Path) -> None:
    from chatapp.evaluation.plot import plot

    try:
        text = json.dumps(made, indent=2) + "\n"
        (folder / "report.json").write_text(text, encoding="utf-8")
        plot(found, folder / "accuracy.png")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from None


def _print_table(found: "Sequence[Result]") -> None:
    import io
    import shutil

    from rich.console import Console

    from chatapp.evaluation.report import table

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    made = table(found, width)
    # As wide as the table: a terminal may break its lines, but no figure is cut.
    console = Console(file=io.StringIO(), width=10_000)
    console.width = console.measure(made).maximum
    console.print(made)
    assert isinstance(console.file, io.StringIO)
    write(console.file.getvalue())


def _lambada(
    path: Path, settings: "Settings", limit: int | None, seed: int, *, as_json: bool
) -> None:
    from dataclasses import asdict

    from chatapp.evaluation.evaluate import subset
    from chatapp.evaluation.inputs import Item, read_inputs
    from chatapp.evaluation.lambada import is_passage, lambada

    items = []
    for line, text in read_inputs(path):
        if not isinstance(text, str):
            raise text
        if not is_passage(text):
            raise UserError(f"{path}, line {line}: expected a passage of two words or more")
        items.append(Item(text, "", line))
    if not items:
        raise UserError(f"{path}: holds no passages")
    passages = [item.input for item in subset(items, limit, seed)]
    model = load(settings.model, "float32", settings.device)
    with progress("LAMBADA") as show:
        found = lambada(model, passages, show)
    if as_json:
        protocols = {name: asdict(each) for name, each in found.items()}
        write_json({"model": settings.model, "n": len(passages), **protocols})
        return
    for name, each in found.items():
        write(f"{name}: accuracy {each.accuracy:.4f}, perplexity {each.perplexity:.2f}\n")
