"""What `run` and `eval` share: finding prompt files and showing how far they are.

The one invariant: progress is shown on standard error, and only on a terminal.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from chatapp.commands.console import complain

INTERRUPTED = 130

Report = Callable[[int, int | None], None]
"""Called with how much is done, and of how much, if that is known."""


def prompt_path(name: str) -> Path:
    """The prompt file of that name, or the one in the library that comes with the program.

    In the library `spam`, `spam.toml` and `prompts/spam.toml` are the same.
    """
    path = Path(name)
    if path.exists() or path.parent not in (Path(), Path("prompts")):
        return path
    package = Path(__file__).parent.parent
    # Within the package when installed, beside it when run from a copy of the sources.
    for library in (package / "prompts", package.parent / "prompts"):
        for found in (library / path.name, library / f"{path.name}.toml"):
            if found.is_file():
                return found
    return path


@contextmanager
def progress(text: str) -> Iterator[Report]:
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
    """Turn Ctrl+C into a sentence and exit status 130."""
    try:
        yield
    except KeyboardInterrupt:
        complain(sentence)
        raise typer.Exit(INTERRUPTED) from None
