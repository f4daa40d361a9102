"""Measure the tables of RESULTS.md and of README.md, and write them there, or compare.

    SHARED_DATA=DATA SMOLLM2_GGUF=FILE python tests/benchmarks/measure.py NAME …
    … python tests/benchmarks/measure.py compare [NAME …]

A name is one of `TABLES`; without one they are listed. A measurement puts its table, its number of
items, its spread, the machine, its load and the versions between the two marks that the file has
for it; whatever stands there before goes. `compare` measures (all, where no name is given; hours),
writes nothing, and names each figure that is not within the spread of the one that is written, with
status 1. SHARED_DATA is the folder of the public data sets, and SMOLLM2_GGUF the file of
SmolLM2-135M-Instruct; without it the bundled model is measured alone. pytest only tries every
measurement at tiny sizes, so that it cannot rot, and writes nothing.
"""

import importlib
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("RESULTS.md")
SMOLLM2 = Path(os.environ.get("SMOLLM2_GGUF", "smollm2.gguf"))
_TRIED = "_CHATAPP_TINY_BENCHMARKS"
_VERSIONS = ("torch", "transformers", "textual")

T = TypeVar("T")


@dataclass(frozen=True)
class Table:
    """head and rows: cells of a Markdown table. count: what was measured how often, and what the
    spread is, in words.
    """

    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    count: str

    def text(self) -> str:
        """The table in Markdown. Raises ValueError for a row that is too long or too short."""
        for row in self.rows:
            if len(row) != len(self.head):
                raise ValueError(f"{row}: expected {len(self.head)} cells")
        lines = [self.head, ("---",) * len(self.head), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


TABLES = {
    "demonstrations": "answers",
    "votes": "votes",
    "examples": "answers",
    "documents": "answers",
    "calculator": "answers",
    "harness": "harness",
    "lambda": "learning",
    "pretraining": "learning",
    "models": "speed",
    "tokens": "speed",
    "clients": "speed",
    "replies": "speed",
    "start": "screen",
    "keys": "screen",
}
"""Each measurement by its name: a function of that name (with _table) in the module named here."""


def measurement(name: str) -> Callable[[], Table]:
    """What measures a table of TABLES."""
    found: Callable[[], Table] = getattr(importlib.import_module(TABLES[name]), f"{name}_table")
    return found


def is_tiny() -> bool:
    """Whether measurements are only tried."""
    return _TRIED in os.environ


def sized(full: T, tiny: T) -> T:
    """One of two sizes."""
    return tiny if is_tiny() else full


def models() -> dict[str, str]:
    """The models to measure, by the names that tables have for them."""
    return {"bundled": "bundled"} | ({"SmolLM2-135M": str(SMOLLM2)} if SMOLLM2.is_file() else {})


def run_chatapp(*arguments: str, **variables: str) -> None:
    """Run a command of the program that has to succeed; its output is left out."""
    command = [sys.executable, "-m", "chatapp", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


def machine() -> str:
    """The machine, how busy it is, and the versions that matter."""
    from chatapp.engine.kernels.machine import processor_name

    load = f", load {os.getloadavg()[1]:.1f}" if hasattr(os, "getloadavg") else ""
    versions = ", ".join(f"{name} {version(name)}" for name in _VERSIONS)
    python = platform.python_version()
    return f"{processor_name()}, {os.cpu_count()} cores{load}; Python {python}, {versions}"


def file_of(name: str) -> Path:
    """The file that has the marks of a table."""
    return ROOT / "README.md" if name == "models" else RESULTS


def divided(text: str, name: str) -> tuple[str, str, str]:
    """What a file has before the first line between the marks of a name, there, and behind it.

    Raises ValueError where the marks are not there.
    """
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, is_there, rest = text.partition(start)
    block, is_closed, after = rest.partition(end)
    if not (is_there and is_closed):
        raise ValueError(f"expected {start.strip()} and {end}")
    return before + start, block, end + after


def written(text: str, name: str, block: str) -> str:
    """The text of a file with another block between the marks of a name."""
    before, _, after = divided(text, name)
    return f"{before}{block}\n{after}"


def figure_and_bounds(cell: str) -> tuple[float, float, float]:
    """The first number of a cell and what it may be: within the numbers in brackets, else two
    times the number after ±, else itself alone. Three NaN for a cell without a number.
    """
    numbers = [
        float(number.replace(",", "").replace("−", "-"))
        for number in re.findall(r"(?:(?<![\w.])[-+−])?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?", cell)
    ]
    if not numbers:
        return (math.nan,) * 3
    if "(" in cell and len(numbers) > 2:
        return numbers[0], numbers[1], numbers[2]
    spread = 2 * numbers[1] if "±" in cell else 0.0
    return numbers[0], numbers[0] - spread, numbers[0] + spread


def agree(before: str, now: str) -> bool:
    """Whether two cells are equal, or the figure of one is within the spread of the other."""
    (old, least, most), (new, lowest, highest) = map(figure_and_bounds, (before, now))
    return before == now or least <= new <= most or lowest <= old <= highest


def differences(block: str, now: Table) -> list[str]:
    """A line for each cell that does not agree with the table that is written, and for each row
    that one of both lacks.
    """
    lines = [line for line in block.splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    before = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    measured = {row[0]: dict(zip(now.head, row, strict=True)) for row in now.rows}
    found = [f"{title}: is in one table alone" for title in before.keys() ^ measured.keys()]
    for title in before.keys() & measured.keys():
        old, new = before[title], measured[title]
        found += [
            f"{title}, {name}: written {old.get(name)}, measured {new.get(name)}"
            for name in dict.fromkeys((*old, *new))
            if not agree(old.get(name, "nothing"), new.get(name, "nothing"))
        ]
    return found


def compare(names: list[str]) -> int:
    """Measure again and print what differs from what is written."""
    status = 0
    for name in names:
        _, block, _ = divided(file_of(name).read_text(encoding="utf-8"), name)
        if not block:
            print(f"{name}: no table is written yet", flush=True)
            continue
        found = differences(block, measurement(name)())
        print("\n  ".join([f"{name}: {len(found)} figures differ", *found]), flush=True)
        status |= bool(found)
    return status


def main(names: list[str]) -> int:
    """Measure the tables and write each as soon as it is known, or compare."""
    is_compared = names[:1] == ["compare"]
    if is_compared:
        names = names[1:] or list(TABLES)
    if unknown := [name for name in names if name not in TABLES]:
        print(f"{unknown[0]}: expected one of {', '.join(TABLES)}", file=sys.stderr)
    if not names or unknown:
        print("\n".join(TABLES))
        return 2 if unknown else 0
    if is_compared:
        return compare(names)
    for name in names:
        facts = machine()
        table = measurement(name)()
        command = f"`python tests/benchmarks/measure.py {name}`"
        block = f"{table.text()}\n\n{command}: {table.count}. {date.today()}, {facts}."
        path = file_of(name)
        path.write_text(written(path.read_text(encoding="utf-8"), name, block), encoding="utf-8")
        print(block, flush=True)
    return 0


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    sys.exit(main(sys.argv[1:]))
