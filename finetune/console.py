"""What every `finetune` command says and prints: errors in one sentence, and the answer.

Invariant: standard output has only the answer (a folder, or with --json one document); invalid
input is one sentence and exit status 2, failed work 1, an interruption 130.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from chatapp.common.foreign import printable
from chatapp.common.unforeseen import INTERRUPTS, describe_unforeseen

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def errors_in_words(interrupted: str = "interrupted") -> Iterator["Console"]:
    """A console on standard error, where every error is one sentence."""
    from rich.console import Console

    first = os.environ.get("RANK", "0") == "0"
    console = Console(stderr=True, highlight=False, quiet=not first)
    try:
        yield console
    except KeyboardInterrupt:
        code, text = 130, interrupted
    except (typer.Exit, *INTERRUPTS):
        raise
    except BaseException as error:
        code, text = _verdict(error)
    else:
        return
    # Every process may fail differently; all messages are shown.
    Console(stderr=True, highlight=False, soft_wrap=True).print(printable(text), markup=False)
    raise typer.Exit(code) from None


def _verdict(error: BaseException) -> tuple[int, str]:
    """Exit status and sentence of an error."""
    from chatapp.common.userfiles import UserError, invalid_path
    from chatapp.tasks.evaluation.journal import NotWritten
    from finetune.config.sections import Interrupted

    if isinstance(error, UserError):
        return 2, str(error)
    if (problem := invalid_path(error)) is not None:
        return 2, problem
    if isinstance(error, Interrupted):
        return 130, str(error)
    if isinstance(error, FloatingPointError | OSError | MemoryError | NotWritten):
        return 1, str(error) or "there is not enough memory; try a smaller train.batch_size"
    if isinstance(error, RuntimeError) and "memory" in str(error):
        line = str(error).strip().splitlines()[0]
        return 1, f"there is not enough memory ({line}); try a smaller train.batch_size"
    return 1, describe_unforeseen(error)


def print_made(folder: Path) -> None:
    """Print a model's folder on standard output, and add it to `chatapp models list`."""
    from chatapp.engine.models.resolving import note_model

    note_model(folder)
    print_answer(str(folder))


def print_answer(text: str) -> None:
    """Print the answer on standard output, in the first of several processes."""
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.write(text + "\n")
