"""Standard output and error of the commands.

Keep: standard output holds the answer alone and no control character of foreign text; a reader that
goes away ends the command quietly.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import typer

from chatapp.foreign import printable
from chatapp.userfiles import UserError, reason, write_whole

_SIGPIPE_STATUS = 141  # what a shell reports of a program that was ended by a closed pipe


def write(text: str, *, verbatim: bool = False) -> None:
    """Put text on standard output at once.

    verbatim: for text that is already safe, or that goes where nothing obeys it.
    """
    if not verbatim:
        text = printable(text)
    if sys.stdout is None:
        complain("standard output is closed")
        raise typer.Exit(1)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # What is still buffered would fail again when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(_SIGPIPE_STATUS) from None
        complain(f"standard output cannot be written: {error.strerror}")
        raise typer.Exit(1) from None


def write_output(path: Path, text: str, *, force: bool) -> None:
    """Write a file that the user has named. Raises UserError, also when it is there already.

    force: replace one that is there; a full disk then leaves it as it was.
    """
    try:
        if force and path.is_file():
            write_whole(path, text)
        else:
            with path.open("w" if force else "x", encoding="utf-8") as file:
                file.write(text)
    except FileExistsError:
        raise UserError(f"{path}: this file exists; --force replaces it") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be written: {reason(error)}") from None


def write_json(document: Any) -> None:
    """Put one JSON document on standard output, all but ASCII escaped."""
    write(json.dumps(document, indent=2) + "\n")


def complain(sentence: str) -> None:
    """Say on standard error what is wrong."""
    print(f"chatapp: {printable(sentence)}", file=sys.stderr)


def status(text: str) -> None:
    """Show what goes on in one line of the terminal, instead of the line before; "" clears it."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{printable(text)}", end="", file=sys.stderr, flush=True)
