"""What `run` and `eval` share: finding prompt files, options, and showing how far they are.

Keep: progress is shown on standard error, and only on a terminal.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chatapp.commands.console import complain
from chatapp.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.engine.model import LanguageModel
    from chatapp.prompting.chat_template import Template
    from chatapp.prompting.examples import Pool
    from chatapp.prompting.promptfile import PromptFile

FAILED, INTERRUPTED = 1, 130

StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse a pool in which an input has two labels.")
]

ProgressReport = Callable[[int, int | None], None]
"""Called with how much is done, and of how much, if that is known."""


def prompt_path(name: str) -> Path:
    """The prompt file of that name, or the one in the library.

    In the library `spam`, `spam.toml` and `prompts/spam.toml` are the same. A folder, such as a
    run of finetune, is no prompt file.
    Raises UserError for a name that is in neither place.
    """
    from chatapp.prompting.library import files, tasks
    from chatapp.userfiles import did_you_mean

    path = Path(name)
    is_elsewhere = "\0" in name or path.parent not in (Path(), Path("prompts"))
    if is_elsewhere or (path.exists() and not path.is_dir()):
        return path
    prompts = tasks()
    if file := (prompts | {file.name: file for file in files()}).get(path.name):
        return file
    hint = did_you_mean(path.stem, prompts) or f"; it has {', '.join(prompts)}"
    raise UserError(f"{name}: there is no such file, and none in the library of prompts{hint}")


def report_pool(pool: "Pool", *, strict: bool) -> None:
    """Say which rows of a pool repeat or contradict others.

    Raises UserError when `strict`, and an input has two labels.
    """
    if pool.repeats:
        rows = "row repeats" if pool.repeats == 1 else "rows repeat"
        complain(f"{pool.source}: {pool.repeats} {rows} another one; each is used once")
    if pool.conflicts:
        more = len(pool.conflicts) - 1
        sentence = pool.conflicts[0] + (f", and so on for {more} more" if more else "")
        if strict:
            raise UserError(f"{sentence}; without --strict such rows are used as they stand")
        complain(f"{sentence}; these rows are used as they stand, --strict refuses them")


@contextmanager
def progress(text: str) -> Iterator[ProgressReport]:
    """A bar on standard error while the context lasts."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


@contextmanager
def interruptible(sentence: str) -> Iterator[None]:
    """Turn Ctrl+C into a sentence and exit status 130, and a full disk into another and 1."""
    from chatapp.evaluation.journal import NotWritten

    try:
        yield
    except KeyboardInterrupt:
        complain(sentence)
        raise typer.Exit(INTERRUPTED) from None
    except NotWritten as error:
        complain(str(error))
        raise typer.Exit(FAILED) from None


def template_for(prompts: "Iterable[PromptFile]", model: "LanguageModel") -> "Template":
    """What turns of a chat with a model are written in, where one of the prompts has turns.

    Raises UserError for a template of the model's that cannot be used.
    """
    from chatapp.dialogue.template_choice import choose_template
    from chatapp.prompting.template import PLAIN

    if all(prompt.style == "text" for prompt in prompts):
        return PLAIN
    return choose_template(model, "")
