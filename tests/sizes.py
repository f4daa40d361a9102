"""How large the house is, as one table: `python tests/sizes.py [CHECKOUT]`.

Counts the Python of chatapp and finetune, without finetune/bundled_model, which is in no wheel.
"""

import ast
import sys
from collections import Counter
from pathlib import Path

_LONG_FUNCTION, _LONG_FILE, _SMALL_FILE, _FULL_FOLDER = 50, 400, 60, 20


def sizes(root: Path) -> dict[str, object]:
    """The counts by their names, for a checkout."""
    paths = [
        path
        for package in ("chatapp", "finetune")
        for path in sorted((root / package).rglob("*.py"))
        if "bundled_model" not in path.parts
    ]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    modules = [path for path in paths if path.name != "__init__.py"]
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    folders = Counter(path.parent.relative_to(root) for path in paths)
    return {
        "lines": sum(lines.values()),
        "modules (without __init__)": len(modules),
        f"modules below {_SMALL_FILE} lines": sum(lines[path] < _SMALL_FILE for path in modules),
        "classes": sum(isinstance(node, ast.ClassDef) for node in nodes),
        "import lines": sum(_length(node) for node in imports),
        f"functions above {_LONG_FUNCTION} lines": sum(
            _length(node) > _LONG_FUNCTION for node in functions
        ),
        f"files above {_LONG_FILE} lines": sum(count > _LONG_FILE for count in lines.values()),
        f"folders with more than {_FULL_FOLDER} files": sum(
            count > _FULL_FOLDER for count in folders.values()
        ),
    }


def _length(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


if __name__ == "__main__":
    for name, count in sizes(Path(sys.argv[1] if len(sys.argv) > 1 else ".")).items():
        print(f"{count:8,}  {name}")
