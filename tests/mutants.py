"""How many small faults in a room its tests find.

    python tests/mutants.py ROOM TESTS … [--count 30] [--seed 0] [--only 3,17] [--seconds 900]

ROOM is a folder or file of chatapp or finetune, TESTS what pytest is to run. A mutant is the room
with one random change of one expression: a comparison, a condition, a sign, a number, a constant or
what is returned. It is killed if a test fails, or if the tests take longer than --seconds. The
same room and seed give the same mutants, so two versions of the tests can be compared: those that
the first leaves alive are tried with the second by --only. All of it happens in a copy of the
checkout.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_COPIED = ("chatapp", "finetune", "prompts", "tests", "pyproject.toml", "README.md")
_COMPARED = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult}


@dataclass(frozen=True)
class Mutant:
    """A file of the room, the line of the change, and the file's text with it."""

    path: Path
    line: int
    change: str
    text: str


def changes(node: ast.AST) -> Iterator[Callable[[], None]]:
    """What can be changed at a node, in place."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARED:
            yield lambda: setattr(node, "ops", [_COMPARED[type(operator)]()])
        case ast.BoolOp(op=operator):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield lambda: setattr(node, "op", other)
        case ast.BinOp(op=operator) if type(operator) in _SIGNS:
            yield lambda: setattr(node, "op", _SIGNS[type(operator)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            twice = ast.UnaryOp(ast.Not(), operand)
            yield lambda: setattr(node, "operand", twice)
        case ast.Constant(value=bool(value)):
            yield lambda: setattr(node, "value", not value)
        case ast.Constant(value=int(value)):
            yield lambda: setattr(node, "value", value + 1)
        case ast.If(test=test) | ast.IfExp(test=test):
            yield lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), test))
        case ast.Return(value=ast.expr()):
            yield lambda: setattr(node, "value", ast.Constant(None))


def mutants(room: Path, count: int, seed: int) -> list[Mutant]:
    """Different mutants of a room, drawn evenly from everything that can be changed."""
    paths = sorted(room.rglob("*.py")) if room.is_dir() else [room]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    places = [
        (path, number)
        for path, text in texts.items()
        for number, node in enumerate(ast.walk(ast.parse(text)))
        if any(True for _ in changes(node))
    ]
    drawn = random.Random(seed).sample(places, min(count, len(places)))
    return [_mutant(path, texts[path], number) for path, number in drawn]


def _mutant(path: Path, text: str, number: int) -> Mutant:
    tree = ast.parse(text)
    node = list(ast.walk(tree))[number]
    before = ast.unparse(node).splitlines()[0]
    next(changes(node))()
    after = ast.unparse(ast.fix_missing_locations(node)).splitlines()[0]
    line = getattr(node, "lineno", 0)
    return Mutant(path, line, f"{before}  ->  {after}", ast.unparse(tree) + "\n")


def is_killed(mutant: Mutant, copy: Path, tests: list[str], seconds: float) -> bool:
    """Whether the tests find the mutant in a copy of the checkout, which is as before then."""
    target = copy / mutant.path.relative_to(ROOT)
    before = target.read_text(encoding="utf-8")
    target.write_text(mutant.text, encoding="utf-8")
    try:
        return not passes(copy, tests, seconds)
    finally:
        target.write_text(before, encoding="utf-8")


def passes(copy: Path, tests: list[str], seconds: float) -> bool:
    """Whether the tests pass in a copy of the checkout, within some seconds."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, stdout=subprocess.DEVNULL, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> None:
    """Print each mutant that stays alive, and how many were killed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("room", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--seconds", type=float, default=900.0)
    given = parser.parse_args()
    made = dict(enumerate(mutants(ROOT / given.room, given.count, given.seed)))
    chosen = {number: made[number] for number in given.only or made}
    alive = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in _COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
        if not passes(copy, given.tests, given.seconds):
            sys.exit("the tests do not pass as the room is")
        for number, mutant in chosen.items():
            if not is_killed(mutant, copy, given.tests, given.seconds):
                alive += 1
                place = f"{mutant.path.relative_to(ROOT)}:{mutant.line}"
                print(f"{number} alive: {place}: {mutant.change}", flush=True)
    print(f"{given.room}: {len(chosen) - alive} of {len(chosen)} killed (seed {given.seed})")


if __name__ == "__main__":
    main()
