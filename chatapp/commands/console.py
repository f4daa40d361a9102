"""Standard input, output and error of the commands."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from chatapp.common.foreign import printable
from chatapp.common.userfiles import Progress, UserError, encoding_hint, reason, write_named

FAILED, INTERRUPTED = 1, 130
_SIGPIPE_STATUS = 141  # a shell's status of a program that was ended by a closed pipe

MOST_INPUT = 16 * 2**20
"""Bytes that are read: far more than any model's window."""


def standard_input() -> str:
    """The piped input; "" when standard input is a terminal or closed."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    return decoded(sys.stdin.buffer.read(MOST_INPUT + 1), "standard input")


def decoded(data: bytes, place: str) -> str:
    """Decode the bytes of a file or of standard input."""
    if len(data) > MOST_INPUT:
        raise UserError(f"{place} is longer than {MOST_INPUT // 2**20} MiB")
    if b"\0" in data:
        raise UserError(f"{place} is not text: it contains NUL bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{place}, line {line}: is not valid UTF-8 {encoding_hint(data)}") from None


def write(text: str, *, verbatim: bool = False) -> None:
    """Write text to standard output immediately.

    verbatim: for text that is already safe, or whose reader is not a terminal.
    """
    if not verbatim:
        text = printable(text)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # Buffered text would fail again when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(_SIGPIPE_STATUS) from None
        complain(f"standard output cannot be written: {reason(error)}")
        raise typer.Exit(1) from None


def write_output(path: Path, text: str, *, force: bool) -> None:
    """Write a file that the user has named. Raises UserError, also when it exists already.

    force: replace an existing file.
    """
    try:
        write_named(path, text, replace=force)
    except FileExistsError:
        raise UserError(f"{path}: this file already exists; --force replaces it") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be written: {reason(error)}") from None


def write_json(document: Any) -> None:
    """Write one JSON document to standard output, with everything except ASCII escaped."""
    write(json.dumps(document, indent=2) + "\n")


def complain(sentence: str) -> None:
    """Write an error sentence to standard error."""
    print(f"chatapp: {printable(sentence)}", file=sys.stderr)


def status(text: str) -> None:
    """Replace the terminal's status line; "" clears it."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{printable(text)}", end="", file=sys.stderr, flush=True)


@contextmanager
def reading_documents(title: str = "") -> Iterator[Progress]:
    """Shows how far documents are read, and their passages encoded, while the context lasts."""
    try:
        yield lambda done, of: status(f"Reading documents: {done / of:.0%} …")
    finally:
        status("")


ProgressReport = Callable[[int, int | None], None]
"""Called with the amount of finished work, and the total, if known."""


@contextmanager
def progress(text: str, *, of_bytes: bool = False) -> Iterator[ProgressReport]:
    """A bar on standard error while the context lasts. of_bytes: what is counted."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counts = (DownloadColumn(), TransferSpeedColumn()) if of_bytes else (MofNCompleteColumn(),)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *counts,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


@contextmanager
def interruptible(sentence: str) -> Iterator[None]:
    """Convert Ctrl+C to a sentence and exit status 130, and a full disk to another and 1."""
    from chatapp.tasks.evaluation.journal import NotWritten

    try:
        yield
    except KeyboardInterrupt:
        complain(sentence)
        raise typer.Exit(INTERRUPTED) from None
    except NotWritten as error:
        complain(str(error))
        raise typer.Exit(FAILED) from None
