"""What the shell is offered to complete a command with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chatapp.commands import options
from chatapp.common.paths import database_path
from chatapp.dialogue.store import Store
from chatapp.engine.models import resolving

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def machine(home, tmp_path, monkeypatch):
    """Two models, a server with a name, and no hub."""
    monkeypatch.setattr(resolving, "local_models", lambda: ["bundled", "runs/[b]mine[/b]"])
    (home / "config").mkdir(parents=True)
    (home / "config" / "servers.toml").write_text('[big]\nurl = "http://localhost:1"\n')


def test_names(home):
    assert options.models("") == ["bundled", "runs/[b]mine[/b]", "big"]
    assert options.models("b") == ["bundled", "big"]
    assert options.models("nothing") == []
    assert options.templates("al") == ["alpaca"]
    assert options.precisions("int") == ["int8", "int4"]
    assert "spam" in options.prompts("s")
    assert options.paper_tasks("2D") == ["2D+", "2D-", "2Dx"]
    assert "2D+,RW" in options.paper_tasks("2D+,R")


def test_chats_by_their_ids():
    assert options.chats("") == []
    assert not database_path().exists()  # asking makes nothing
    store = Store(database_path())
    store.create_chat(title="About\x1b the [b]sea[/b]\nand more")
    store.create_chat(title="x" * 100)
    store.close()
    assert options.chats("") == [("2", "x" * 40), ("1", "About␛ the [b]sea[/b] and more")]
    assert options.chats("1") == [("1", "About␛ the [b]sea[/b] and more")]


def test_what_is_wrong_is_not_the_shells_business(home):
    (home / "config" / "servers.toml").write_text("oops")
    assert options.models("") == []
    database_path().parent.mkdir(parents=True)
    database_path().write_text("this is no database" * 100)
    assert options.chats("") == []


SCRIPT = """
import sys
from chatapp.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def complete(words, folder):
    """What bash is told for the last of some words, and which modules that took."""
    instructions = {
        "_CHATAPP_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "HF_HUB_CACHE": str(folder / "hub"),
    }
    return subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env={**os.environ, **instructions},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("chatapp ser", "serve"),
        ("chatapp ask --templ", "--template"),
        ("chatapp ask --model bund", "bundled"),
        ("chatapp --model bi", "big"),
        ("chatapp run questi", "question_type"),
        ("chatapp eval --task 2D+,3D-", "2D+,3D-"),
        ("chatapp models info bi", "big"),
    ],
)
def test_the_shell_asks(words, offered, tmp_path):
    result = complete(words, tmp_path)
    assert result.stdout.split() == [offered]
    assert not {"torch", "transformers", "textual"} & set(result.stderr.split())


def test_where_files_are_meant_nothing_is_offered(tmp_path):
    assert complete("chatapp perplexity READ", tmp_path).stdout.strip() == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_it_can_be_installed(run, shell, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    instructions = {"_CHATAPP_COMPLETE": f"source_{shell}"}
    result = subprocess.run(
        [sys.executable, "-m", "chatapp"],
        cwd=ROOT,
        env={**os.environ, **instructions},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0
    assert "_CHATAPP_COMPLETE" in result.stdout
    assert "--install-completion" in run("--help").out
