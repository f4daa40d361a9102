"""Recipes: configurations and data builders that can be run as they stand."""

import sys
from collections.abc import Callable

import typer

from chatapp.foreign import printable
from finetune.config import ConfigError


def run(build: Callable[..., None]) -> None:
    """Run a data builder as a command; what is wrong with its input is one sentence."""
    try:
        typer.run(build)
    except OSError as error:
        problem = f"{error.filename}: {error.strerror}"
    except (ConfigError, UnicodeError) as error:
        problem = str(error)
    else:
        return
    sys.stderr.write(printable(problem) + "\n")
    sys.exit(2)
