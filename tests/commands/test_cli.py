"""The command as a whole: help, the chat's start, and errors nobody foresaw."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from chatapp import __version__
from chatapp.common.paths import database_path, log_dir, settings_path
from chatapp.common.settings import Settings
from chatapp.common.unforeseen import describe_unforeseen
from chatapp.dialogue.store import Store
from chatapp.engine.models import loading

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def kept():
    """Whether the chats that the screen was started with are on disk."""
    return []


@pytest.fixture
def started(monkeypatch, kept):
    """What the chat's screen was started with."""
    calls = []

    def run(settings, chat_id, *, store, inline, may_be_served):
        assert not inline
        assert may_be_served
        calls.append((settings, chat_id))
        kept.append(store.is_kept)
        store.close()
        return 0

    monkeypatch.setitem(sys.modules, "chatapp.tui.app", SimpleNamespace(run=run))
    return calls


def test_help_imports_nothing_heavy():
    script = "import sys; from chatapp.cli import main\ntry: main()\nfinally: print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", script, "--help"], cwd=ROOT, env={}, capture_output=True, text=True
    )
    assert "ask" in result.stdout
    heavy = {"torch", "transformers", "textual", "numpy", "pydantic", "rich.console", "sqlite3"}
    heavy |= {"jsonschema", "importlib.metadata", "chatapp.lab.views"}
    assert not heavy & set(result.stdout.split())


def test_it_runs_as_a_module():
    result = subprocess.run(
        [sys.executable, "-m", "chatapp", "--version"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.stdout == f"chatapp {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["ask"], ["docs"], ["history"], ["models"]])
def test_a_group_has_help(run, arguments):
    status, out, _ = run(*arguments, "-h")
    assert status == 0
    assert re.search(r"^Usage: chatapp", out, re.MULTILINE)


def test_without_a_command_the_chat_starts(run, started):
    assert run("--model", "./mine", "--template", "alpaca", terminal=True) == (0, "", "")
    assert started == [(Settings(model="./mine", template="alpaca"), None)]


def test_the_chat_goes_on_with_the_one_changed_last(run, started):
    assert run("-c", terminal=True).status == 0
    store = Store(database_path())
    store.create_chat()
    last = store.create_chat()
    store.close()
    assert run("--continue", terminal=True).status == 0
    assert [chat_id for _, chat_id in started] == [None, last]


def test_an_unsaved_chat_makes_no_file(run, started, kept, home):
    assert run("--unsaved", terminal=True) == (0, "", "")
    assert kept == [False]
    assert not home.exists()
    assert "--unsaved cannot be used together" in run("--unsaved", "-c", terminal=True).err


@pytest.mark.parametrize(("answer", "status", "kept_then"), [(b"\n", 0, [False]), (b"n\n", 2, [])])
def test_where_nothing_can_be_stored_an_unsaved_chat_is_offered(
    run, started, kept, home, answer, status, kept_then
):
    home.mkdir()
    (home / "data").write_text("no folder")
    done = run(stdin=answer, terminal=True)
    assert (done.status, kept) == (status, kept_then)
    assert "chats.db: cannot be opened" in done.err
    assert "Chat without saving anything (--unsaved)?" in done.err


def test_the_chat_needs_a_terminal(run, started):
    status, _, err = run()
    assert (status, started) == (2, [])
    assert err == "chatapp: the chat needs a terminal; `chatapp ask` answers without one\n"


def test_options_of_the_chat_are_not_lost_before_a_command(run):
    status, _, err = run("--model", "x", "history", "list")
    assert (status, err) == (2, "chatapp: put options after the command: chatapp ask --model …\n")


def test_wrong_settings_are_one_sentence(run, started):
    settings_path().parent.mkdir(parents=True)
    settings_path().write_text("modle = 'x'\n")
    status, _, err = run(terminal=True)
    assert status == 2
    assert err == (
        f"chatapp: {settings_path()}, line 1: there is no setting 'modle'; did you mean 'model'?\n"
    )
    assert run("ask", "Hi").status == 2


def test_wrong_flags_give_status_two(run):
    for arguments in (["askk"], ["ask", "--nope"], ["ask", "--seed", "x"], ["history", "show"]):
        assert run(*arguments).status == 2
    status, _, err = run("ask", "Hi", "--top-p", "7")
    assert (status, err) == (
        *(2, "chatapp: --top-p: top_p is 7.0; expected above 0 and at most 1 (off)\n"),
    )


def test_a_bug_is_one_sentence_and_a_traceback_in_the_log(run, monkeypatch):
    def broken(name, **_):
        raise ZeroDivisionError("by \x1b[31mzero")

    monkeypatch.setattr(loading, "load_model", broken)
    status, out, err = run("ask", "Hi")
    log = log_dir() / "chatapp.log"
    assert (status, out) == (1, "")
    assert err == (
        f"chatapp: an unexpected error, ZeroDivisionError: by ␛[31mzero; "
        f"the traceback is in {log}\n"
    )
    assert "Traceback" in log.read_text()
    assert "in broken" in log.read_text()
    run("ask", "Hi")
    assert log.read_text().count("Traceback") == 2


def test_debugging_shows_the_traceback(monkeypatch, capsys):
    monkeypatch.setenv("CHATAPP_DEBUG", "1")
    with pytest.raises(ZeroDivisionError) as caught:
        raise ZeroDivisionError("by \x1b[31mzero")
    sentence = describe_unforeseen(caught.value)
    assert sentence.startswith("an unexpected error, ZeroDivisionError")
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert "in test_debugging_shows_the_traceback" in shown
    assert "ZeroDivisionError: by ␛[31mzero" in shown


def test_a_panic_is_an_error_like_any_other(run, monkeypatch):
    class PanicException(BaseException):
        """As Rust libraries raise it: no Exception."""

    def broken(name, **_):
        raise PanicException("index out\nof bounds")

    monkeypatch.setattr(loading, "load_model", broken)
    status, out, err = run("ask", "Hi")
    assert (status, out) == (1, "")
    assert err.startswith(
        "chatapp: an unexpected error, PanicException: index out of bounds; the traceback is in "
    )
    assert len(err.splitlines()) == 1
    assert "PanicException" in (log_dir() / "chatapp.log").read_text()


def test_a_bug_is_told_even_where_no_log_can_be_written(run, home, monkeypatch):
    def broken(name, **_):
        raise ZeroDivisionError

    monkeypatch.setattr(loading, "load_model", broken)
    home.mkdir()
    log_dir().write_text("a file where the folder should be")
    status, _, err = run("ask", "Hi")
    assert status == 1
    assert f"the traceback could not be written to {log_dir() / 'chatapp.log'}" in err


PROGRAMS = (["chatapp", "--help"], ["finetune", "--help"], ["chatapp", "models", "list"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no such device")
@pytest.mark.parametrize("command", PROGRAMS, ids=" ".join)
@pytest.mark.parametrize("streams", ["1>/dev/full", "1>&-", "2>&- 0<&-", "1>ascii.txt"])
def test_streams_that_take_nothing_or_not_all(home, tmp_path, command, streams):
    variables = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    shell = f"exec {shlex.quote(sys.executable)} -m {shlex.join(command)} {streams}"
    done = subprocess.run(
        ["sh", "-c", shell], cwd=tmp_path, env=variables, capture_output=True, check=False
    )
    is_refused = streams.startswith("1>") and streams != "1>ascii.txt"
    assert done.returncode == (1 if is_refused else 0)
    assert done.stderr.count(b"\n") == is_refused
    assert (b"standard output cannot be written: " in done.stderr) == is_refused
