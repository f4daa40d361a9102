"""Ctrl+G gives the text to the user's editor and takes back what it has saved."""

import shlex
import sys
from contextlib import nullcontext

import pytest

from chatapp.tui.app import ChatApp


@pytest.fixture
def editor(tmp_path, monkeypatch):
    """Let the editor be a Python program, given the file's `path`."""
    monkeypatch.setattr(ChatApp, "suspend", lambda app: nullcontext())
    monkeypatch.setenv("EDITOR", "false")

    def use(program):
        script = tmp_path / "an editor.py"
        lines = f"import sys, pathlib\npath = pathlib.Path(sys.argv[1])\n{program}\n"
        script.write_text(lines)
        monkeypatch.setenv("VISUAL", f"{sys.executable} {shlex.quote(str(script))}")

    return use


async def test_what_the_editor_saves_comes_into_the_prompt(open_app, editor):
    editor("path.write_text(path.read_text() + ' [b]two[/b]\\n\\x1b[2J three\\n')")
    async with open_app() as driver:
        await driver.press(*"one", "ctrl+g")
        assert driver.prompt.text == "one [b]two[/b]\n\x1b[2J three"
        assert driver.app.focused is driver.prompt


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("sys.exit(3)", "ended with status 3"),
        ("path.unlink()", "cannot be read"),
        ("path.write_bytes(b'\\xff')", "cannot be read"),
    ],
)
async def test_a_failing_editor_changes_nothing(open_app, editor, program, words):
    editor(program)
    async with open_app() as driver:
        await driver.press(*"one", "ctrl+g")
        assert driver.prompt.text == "one"
        assert words in [note.message for note in driver.app._notifications][-1]


@pytest.mark.parametrize(
    ("command", "words"),
    [("", "no editor is set"), ("/no/such/editor", "cannot be run"), ("'", "cannot be run")],
)
async def test_an_editor_that_is_not_there_is_told(open_app, editor, monkeypatch, command, words):
    monkeypatch.setenv("VISUAL", "")
    monkeypatch.setenv("EDITOR", command)
    async with open_app() as driver:
        await driver.press(*"one", "ctrl+g")
        assert driver.prompt.text == "one"
        assert words in [note.message for note in driver.app._notifications][-1]


async def test_where_the_terminal_cannot_be_given_away(open_app, monkeypatch):
    monkeypatch.setenv("VISUAL", "true")
    async with open_app() as driver:
        await driver.press(*"one", "ctrl+g")
        assert "cannot be opened here" in [n.message for n in driver.app._notifications][-1]
