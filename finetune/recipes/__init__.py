"""Recipes: configurations and data builders that can be run unchanged.

Builders of data are commands of their own: `python -m finetune.recipes.arithmetic …`.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from chatapp.common.foreign import printable
from chatapp.common.userfiles import UserError, reason, write_whole


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


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]], kind: str) -> None:
    """Write rows as JSON lines, making the folder, and print how many of what kind there are."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(lines))
    print(f"{path}: {len(lines):,} {kind}")
