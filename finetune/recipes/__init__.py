"""Recipes: configurations and data builders that can be run as they stand.

Builders of data as commands of their own: `python -m finetune.recipes.arithmetic …`.

Keep: what is wrong with the input is one sentence on standard error and exit status 2.
"""

import sys
from collections.abc import Callable

import typer

from chatapp.common.foreign import printable
from chatapp.common.userfiles import UserError, reason


def run(build: Callable[..., None]) -> None:
    """Run a builder whose parameters are the command line's."""
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
