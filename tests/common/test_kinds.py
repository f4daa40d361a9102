"""Kinds of faults that came back by another entrance: for each one mechanism, and all its users.

Each test walks the whole product by its syntax. A new user of the bare form fails here; the
mechanism's docstring says what it bounds. `OWN` names the exceptions, each with its reason.
"""

import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FILES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for room in ("chatapp", "finetune")
    for path in (ROOT / room).rglob("*.py")
    if "bundled_model" not in path.parts and "recipes" not in path.parts
}
"""The recipes read data that their authors publish, on the maintainer's machine."""


def calls(names: str) -> Iterator[tuple[str, ast.Call, str]]:
    """The calls of functions and methods whose dotted end a pattern matches, with their file."""
    for file, tree in FILES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and re.fullmatch(names, name := ast.unparse(node.func)):
                yield file, node, name


def users(names: str) -> set[str]:
    return {file for file, _, _ in calls(names)}


def test_json_is_read_by_one_function() -> None:
    """`parse_json` raises ValueError for everything, so no `except` can name too little."""
    own = {"chatapp/common/foreign.py", "finetune/objectives/reward_worker.py"}  # a script
    assert users(r"json\.loads?") == own
    assert len(list(calls("parse_json"))) > 40


OPENED = {
    "chatapp/common/userfiles.py": "the mechanisms: read_text, open_regular, open_named, open_own",
    "chatapp/engine/kernels/machine.py": "/proc/stat",
    "chatapp/tui/platform/runtime.py": "for measuring, by a variable",
    "chatapp/tui/platform/programs.py": "the text of an editor, in a new folder",
    "chatapp/tasks/evaluation/journal.py": "checked before, and locked",
    "chatapp/commands/run.py": "checked before",
    "chatapp/rows/examples.py": "checked before",
    "finetune/training/record.py": "adds to a log that was read before",
    "finetune/measuring/verbatim.py": "in a new folder",
    "chatapp/engine/models/hub.py": "in a new folder",
    "chatapp/rows/reading.py": "gzip",
    "chatapp/engine/models/running.py": "a draft with a name of its own",
}
"""Files that open others, although not by `userfiles`; those that come with the program aside."""

SHIPPED = re.compile(r"__file__|files\(|_TABLE|SOURCE|^PATH$|^ITEMS$|^\(folder / .page\.(css|js)")


def test_files_are_opened_by_one_room() -> None:
    """Who opens a path itself waits for a pipe without end, or reads a device."""
    found = set()
    for file, node, name in calls(r"(.*\.)?(open|read_text|read_bytes)"):
        receiver, _, method = name.rpartition(".")
        mode = node.args[0] if node.args else None
        is_mode = isinstance(mode, ast.Constant) and re.fullmatch(r"[rwxabt+]+", str(mode.value))
        is_named_so = bool(receiver) and method == "open" and not is_mode and receiver != "gzip"
        if not (is_named_so or SHIPPED.search(receiver) or name in ("read_text", "read_bytes")):
            found.add(file)
    assert found == OPENED.keys() | {"chatapp/dialogue/documents/html.py"}  # a method of a page


def test_folders_are_made_by_one_function() -> None:
    """`mkdir(parents=True, mode=…)` leaves those above to everybody; `make_private` does not."""
    for file, node, _ in calls(r".*\.(mkdir|makedirs)"):
        options = {keyword.arg for keyword in node.keywords}
        assert "mode" not in options or file == "chatapp/common/userfiles.py", file
    assert len(list(calls("make_private"))) > 8


UNBOUNDED = {
    "chatapp/server/worker.py": "64 sequences at most; events of a reply, as many as its tokens",
    "chatapp/server/scores.py": "the tokens of a reply that are not visible yet",
    "chatapp/tasks/answering.py": "questions of the user's file that are read ahead",
    "chatapp/tasks/evaluation/journal.py": "rows that are read ahead, of a given number",
    "chatapp/engine/backends/local.py": "the texts of one call",
}


def test_queues_have_a_bound() -> None:
    found = set()
    for file, node, name in calls(r"(.*\.)?(Simple|Lifo|Priority)?Queue(\[.*\])?|(.*\.)?deque"):
        is_bounded = node.keywords if name.endswith("deque") else node.args
        if not is_bounded:
            found.add(file)
    assert found == UNBOUNDED.keys()
    for file, node, _ in calls(r".*create_memory_object_stream.*"):
        assert node.args, file


STARTERS = {
    "chatapp/common/limited_process.py": "the mechanism",
    "chatapp/common/supervisor.py": "the mechanism",
    "chatapp/commands/serving/api.py": "this program, in the background",
    "chatapp/dialogue/lessons/teaching.py": "this program's training",
    "chatapp/engine/models/hub.py": "a converter that the user called",
    "chatapp/engine/kernels/native.py": "the compiler",
    "chatapp/tui/platform/programs.py": "the user's editor and clipboard",
}


def test_processes_are_started_by_one_room() -> None:
    """A program of others ends with its call only below a supervisor."""
    pattern = r"subprocess\.(Popen|run|check_output|call)|os\.(fork|system|popen|exec.*|spawn.*)"
    assert users(pattern) <= STARTERS.keys()
    assert users("exec|eval") == {"chatapp/dialogue/tools/python.py"}


def test_times_are_read_by_one_function() -> None:
    """`local_time` takes any number of a damaged file."""
    assert users(r".*fromtimestamp|time\.(localtime|gmtime)") == {"chatapp/common/foreign.py"}


def patterns() -> dict[str, tuple[str, int, str]]:
    """Every constant regular expression with its flags, and how it is applied."""
    found = {}
    for file, node, name in calls(
        r"re\.(compile|sub|fullmatch|match|search|split|findall|finditer)"
    ):
        pattern = node.args[0]
        if not (isinstance(pattern, ast.Constant) and isinstance(pattern.value, str)):
            continue
        flags = 0
        for part in (*node.args[1:], *(keyword.value for keyword in node.keywords)):
            for flag in re.findall(r"re\.([A-Z]+)", ast.unparse(part)):
                flags |= getattr(re, flag)
        how = name.removeprefix("re.")
        if how == "compile":
            text = ast.unparse(FILES[file])
            target = re.search(rf"(\w+) = {re.escape(ast.unparse(node))}", text)
            own = re.findall(rf"\b{target[1]}\.(\w+)\(", text) if target else []
            how = "search" if set(own) - {"match", "fullmatch"} or not own else own[0]
        how = how if how in ("match", "fullmatch") else "search"
        found[f"{file}:{node.lineno}"] = (pattern.value, flags, how)
    return found


def attacks(pattern: str) -> Iterator[str]:
    """Texts that make a backtracking search try each of its places to the end."""
    literal = sorted({*re.sub(r"\\.|[\[\]()|?*+^$]", "", pattern)} | {*"a0 \n"})
    units = [*literal, *(first + second for first in literal for second in "a0 \n")]
    for unit in units[:25]:
        yield unit * (_LENGTH // len(unit)) + "\x00"


_LENGTH = 8_000
_SECONDS = 0.2
"""Linear ones need a hundredth of it."""


def test_regular_expressions_take_linear_time() -> None:
    found = patterns()
    assert len(found) > 80
    for place, (pattern, flags, how) in found.items():
        apply = getattr(re.compile(pattern, flags), how)
        for text in attacks(pattern):
            began = time.process_time()
            apply(text)
            assert time.process_time() - began < _SECONDS, (place, pattern, text[:20])
