"""How large the house is: `python tests/sizes.py [CHECKOUT]` prints the table, room by room.

`python tests/sizes.py --check` ends with status 1 where a count is above its ceiling; the gate runs
it. A ceiling only falls: lower it with every commit that saves.
"""

import ast
import sys
from collections import Counter
from pathlib import Path

CEILINGS = {
    "lines": 79_794,
    "modules": 314,
    "lines of finetune/bundled_model": 2_272,
    "lines of tests": 62_712,
}
"""`lines` and `modules` count what is in the wheel: chatapp and finetune without bundled_model; a
module is a file that is not `__init__.py`. The lines rose twice, by 2,700 in all, where the plan of
the house leaves 2,000 for features: the door for Python; chats and models from elsewhere;
notebooks, the inside over HTTP, llm's plugin, the layout of JSON under a schema, `bench --against`.
Those of tests rose by 38, for faults that reviewers found in native drawing and in checkpoints.
"""

_LONG_FUNCTION, _LONG_FILE, _SMALL_FILE = 60, 600, 60


def count_lines(paths: list[Path]) -> int:
    """How many lines the files have together, blank lines included."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def sizes(root: Path) -> dict[str, int]:
    """The counts of a checkout by their names, those with a ceiling first."""
    paths = _product(root)
    modules = [path for path in paths if path.name != "__init__.py"]
    nodes = [n for path in paths for n in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return {
        "lines": count_lines(paths),
        "modules": len(modules),
        "lines of finetune/bundled_model": count_lines(
            sorted((root / "finetune" / "bundled_model").rglob("*.py"))
        ),
        "lines of tests": count_lines(sorted((root / "tests").rglob("*.py"))),
        f"modules below {_SMALL_FILE} lines": sum(count_lines([p]) < _SMALL_FILE for p in modules),
        f"modules above {_LONG_FILE} lines": sum(count_lines([p]) > _LONG_FILE for p in modules),
        "classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
        "functions": len(functions),
        f"functions above {_LONG_FUNCTION} lines": sum(
            _length(node) > _LONG_FUNCTION for node in functions
        ),
        "lines of a function, mean": round(sum(map(_length, functions)) / len(functions)),
        "lines of imports": sum(map(_length, imports)),
    }


def rooms(root: Path) -> dict[str, int]:
    """The lines of each room: the folders of chatapp and its files at the top, finetune as one."""
    counts: Counter[str] = Counter()
    for path in _product(root):
        parts = path.relative_to(root).parts
        room = "finetune" if parts[0] == "finetune" else "/".join(parts[:2])
        counts["chatapp/*.py" if room.endswith(".py") else room] += count_lines([path])
    return dict(sorted(counts.items()))


def _product(root: Path) -> list[Path]:
    return [
        path
        for package in ("chatapp", "finetune")
        for path in sorted((root / package).rglob("*.py"))
        if "bundled_model" not in path.parts
    ]


def _length(node: ast.AST) -> int:
    assert isinstance(node, ast.stmt)
    return (node.end_lineno or node.lineno) - node.lineno + 1


def main(arguments: list[str]) -> int:
    """Print the table; with --check, name each count above its ceiling and return 1 if any is."""
    check = "--check" in arguments
    places = [argument for argument in arguments if argument != "--check"]
    root = Path(places[0] if places else ".")
    counts = sizes(root)
    if not check:
        for name, count in [*counts.items(), *rooms(root).items()]:
            print(f"{count:8,}  {name}")
        return 0
    above = [name for name, ceiling in CEILINGS.items() if counts[name] > ceiling]
    for name in above:
        print(f"{name}: {counts[name]:,}, the ceiling is {CEILINGS[name]:,}", file=sys.stderr)
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
