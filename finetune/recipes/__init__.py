"""Recipes: configurations and data builders that can be run unchanged.

Builders of data are commands of their own: `python -m finetune.recipes.arithmetic …`.
"""

import sys
from collections.abc import Callable

import typer

from chatapp.common.foreign import printable
from chatapp.common.userfiles import UserError, reason


def run(build: Callable[..., None]) -> None:
    """Run a builder whose parameters are those of the command line."""
    try:
        typer.run(build)
    except OSError as error:
        problem = f"{error.filename}: {reason(error)}"
    except (UserError, UnicodeError) as error:
        problem = str(error)
    else:
        return
    sys.stderr.write(printable(problem) + "\n")
    sys.exit(2)
