"""`chatapp ask --tools`: which tools run, and what is printed of them."""

import io
import json
import os
import sys
import threading
import time

import pytest
from fakes import ScriptedModel
from thinking_model import thinking_model

from chatapp.commands.ask import asking
from chatapp.common.paths import tools_dir
from chatapp.dialogue.tools.registry import find_tools
from chatapp.dialogue.tools.tool import PermissionRequest


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.fixture
def touch(tmp_path):
    """A tool of the user's own, and what it makes."""
    tools_dir().mkdir(parents=True)
    command = json.dumps(["touch", str(tmp_path / "touched")])
    (tools_dir() / "touch.toml").write_text(
        f'name = "touch"\ndescription = "Does it."\ncommand = {command}\n'
    )
    return tmp_path / "touched"


def test_a_call_is_told_on_standard_error(run, use_model, tmp_path):
    replies = [call("calculator", expression="1/3"), "A third."]
    told = "chatapp: calculator(expression=1/3): 0.333333333333333… (1/3)\n"
    for options in ([], ["--json"]):
        use_model(thinking_model(tmp_path / "model", replies))
        result = run("ask", "How many?", "--tools", "calculator, clock", *options)
        assert (result.status, result.err) == (0, told)
    document = json.loads(result.out)
    assert (document["reply"], document["calls"]) == (
        "A third.",
        [
            {
                "name": "calculator",
                "arguments": {"expression": "1/3"},
                "result": "0.333333333333333… (1/3)",
                "status": "done",
                "at": 0,
                "inside": 0,
            }
        ],
    )


def test_the_bundled_models_pattern(run, use_model):
    use_model(ScriptedModel([" She has <<48*76=9", "3648 eggs."]))
    assert run("ask", "How many?", "--tools", "calculator") == (
        *(0, "She has <<48*76=3648>>3648 eggs.\n"),
        "chatapp: calculator(expression=48*76): 3648\n",
    )
    own = ("--tools", "calculator,clock", "--tool-choice", "own")
    result = run("ask", "How many?", *own)
    assert result.status == 2
    assert "clock would never be called" in result.err


def test_a_call_stays_out_of_the_answer_in_a_terminal(run, use_model, monkeypatch):
    use_model(ScriptedModel([" She has <<48*76=9", "3648 eggs."]))
    monkeypatch.setattr("sys.stderr", sys.stdout)  # a terminal shows both in one place
    out = run("ask", "How many?", "--tools", "calculator").out
    assert out.endswith("<<48*76=3648>>3648 eggs.\nchatapp: calculator(expression=48*76): 3648\n")


def test_a_tool_that_asks_runs_only_when_it_was_named(run, use_model, tmp_path, touch):
    use_model(thinking_model(tmp_path / "model", [call("touch"), "Done."] * 2))
    result = run("ask", "Do it", "--tools", "touch")
    assert result.status == 0
    assert "error: the user did not allow this call" in result.err
    assert not touch.exists()
    use_model(thinking_model(tmp_path / "model", [call("touch"), "Done."]))
    assert run("ask", "Do it", "--tools", "touch", "--yes-tools", "touch").status == 0
    assert touch.exists()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no terminals to pretend")
@pytest.mark.parametrize(("answer", "ran"), [("y\n", True), ("\n", False), ("no\n", False)])
def test_a_terminal_is_asked(tmp_path, monkeypatch, answer, ran):
    ours, theirs = os.openpty()
    os.write(ours, b"y\n")  # typed before the question
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", shown)
    ended = threading.Event()

    def reply():
        while "[y/N]" not in shown.getvalue():
            time.sleep(0.01)
        while not ended.wait(0.1):
            os.write(ours, answer.encode())

    thread = threading.Thread(target=reply)
    thread.start()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        request = PermissionRequest(find_tools().tools["python"], {"code": "1\n\x1b[2J"})
        decision = asking(())(request, threading.Event())
        ended.set()
        thread.join()
    assert decision == ("once" if ran else "no")
    assert "  │ 1\n  │ \\u001b[2J\n[y/N] " in shown.getvalue()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--tools", "calculater"], "there is no tool 'calculater'; did you mean 'calculator'?"),
        (
            ["--tools", "clock", "--yes-tools", "touch"],
            "--yes-tools names 'touch', which is not among --tools",
        ),
        (
            ["--tools", "python", "--yes-tools", "python"],
            "--yes-tools names 'python', which shows every call and asks for it",
        ),
        (["--tools", "clock", "--reward", "x"], "--reward and --tools cannot be used together"),
        (["--tools", "bad"], "bad.toml: 'description' is missing"),
    ],
)
def test_wrong_options_are_told(run, use_model, tmp_path, options, problem):
    tools_dir().mkdir(parents=True)
    (tools_dir() / "bad.toml").write_text('name = "bad"\ncommand = ["true"]\n')
    use_model(thinking_model(tmp_path / "model", ["Hi"]))
    result = run("ask", "Hi", *options)
    assert (result.status, result.out) == (2, "")
    assert problem in result.err
