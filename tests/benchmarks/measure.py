"""Measure the tables of RESULTS.md, and write them there.

    SHARED_DATA=DATA SMOLLM2_GGUF=FILE python tests/benchmarks/measure.py NAME …

A name is one of `TABLES`; without one they are listed. A measurement puts its table, its number of
items, its spread, the machine, its load and the versions between the two marks that RESULTS.md has
for it; whatever stands there before goes. SHARED_DATA is the folder of the public data sets, and
SMOLLM2_GGUF the file of SmolLM2-135M-Instruct; without it the bundled model is measured alone.
pytest only tries every measurement at tiny sizes, so that it cannot rot, and writes nothing.
"""

import importlib
import os
import platform
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
    "arithmetic": "answers",
    "documents": "answers",
    "calculator": "answers",
    "harness": "harness",
    "lambda": "learning",
    "pretraining": "learning",
    "tokens": "speed",
    "clients": "speed",
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


def try_only() -> None:
    """From now on, here and in processes that are started, measurements are only tried."""
    os.environ[_TRIED] = "1"


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
    names = [platform.processor() or platform.machine()]
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if "model name" in line] or names
    load = f", load {os.getloadavg()[1]:.1f}" if hasattr(os, "getloadavg") else ""
    versions = ", ".join(f"{name} {version(name)}" for name in _VERSIONS)
    python = platform.python_version()
    return f"{names[0]}, {os.cpu_count()} cores{load}; Python {python}, {versions}"


def written(results: str, name: str, block: str) -> str:
    """The text of RESULTS.md with another block between the marks of a name.

    Raises ValueError where the marks are not there.
    """
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, is_there, rest = results.partition(start)
    _, is_closed, after = rest.partition(end)
    if not (is_there and is_closed):
        raise ValueError(f"RESULTS.md: expected {start.strip()} and {end}")
    return f"{before}{start}{block}\n{end}{after}"


def main(names: list[str]) -> int:
    """Measure the tables and write each as soon as it is known."""
    if unknown := [name for name in names if name not in TABLES]:
        print(f"{unknown[0]}: expected one of {', '.join(TABLES)}", file=sys.stderr)
    if not names or unknown:
        print("\n".join(TABLES))
        return 2 if unknown else 0
    for name in names:
        facts = machine()
        table = measurement(name)()
        command = f"`python tests/benchmarks/measure.py {name}`"
        block = f"{table.text()}\n\n{command}: {table.count}. {date.today()}, {facts}."
        RESULTS.write_text(
            written(RESULTS.read_text(encoding="utf-8"), name, block), encoding="utf-8"
        )
        print(block, flush=True)
    return 0


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    sys.exit(main(sys.argv[1:]))
