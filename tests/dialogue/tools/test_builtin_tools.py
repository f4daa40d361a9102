"""Clock and the searches, as a model calls them."""

import re
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chatapp.common.userfiles import UserError
from chatapp.dialogue.tools import built_in
from chatapp.dialogue.tools.registry import find_tools
from chatapp.dialogue.tools.tool import Outcome, ToolError, misfit_of, run
from chatapp.tasks.files.documents import DocumentSet

NOW = datetime(2026, 11, 23, 14, 5, 6, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))


def called(tool, **arguments):
    tools = find_tools().tools
    problem = misfit_of(tools, tool, arguments)
    return problem or run(tools[tool], arguments, threading.Event()).text


def test_the_clock_tells_day_and_zone(monkeypatch):
    monkeypatch.setattr(built_in, "now", lambda zone=None: NOW)
    assert called("clock") == "Monday, 23 November 2026 (2026-11-23, week 48), 14:05:06 UTC"
    monkeypatch.undo()
    assert called("clock", zone="Asia/Tokyo").endswith("JST")
    assert called("clock", zone="../etc/passwd").startswith("error: there is no time zone")


def test_the_manual_is_that_of_this_program():
    found = called("manual", query="how do I branch a reply")
    assert "[1] " in found
    assert "branch" in found


def test_documents_are_searched_where_the_chat_has_some(tmp_path):
    (tmp_path / "walrus.txt").write_text("A walrus eats clams.\x1b[31m")
    tools = find_tools(DocumentSet((str(tmp_path / "walrus.txt"),))).tools
    outcome = run(tools["documents"], {"query": "walrus"}, threading.Event())
    assert outcome.ending == "done"
    assert "A walrus eats clams." in outcome.text
    assert "\x1b" not in outcome.text
    nothing = find_tools(DocumentSet((str(tmp_path / "none"),))).tools["documents"]
    assert run(nothing, {"query": "x"}, threading.Event()).ending == "failed"
    stopped = threading.Event()
    stopped.set()
    assert run(nothing, {"query": "x"}, stopped).ending in ("failed", "stopped")


USES = {
    "calculator": ({"expression": "15% of 80"}, "12", {"expression": "1/0"}, "it divides by zero"),
    "clock": ({"zone": "Europe/Paris"}, "week", {"zone": "Atlantis"}, "there is no time zone"),
    "manual": ({"query": "how do I branch a reply"}, "[1] ", {"query": 5}, "'query' is the number"),
    "documents": ({"query": "clams"}, "A walrus eats clams.", {}, "'query' is missing"),
    "python": ({"code": "6 * 7"}, "42", {"code": "x"}, "name 'x' is not defined"),
}
"""For each tool that is built in: a call, a part of its text, a wrong call, and a part of why."""


def test_each_tool_that_is_built_in_is_called(tmp_path):
    (tmp_path / "walrus.txt").write_text("A walrus eats clams.")
    tools = find_tools(DocumentSet((str(tmp_path / "walrus.txt"),))).tools
    new = tools.keys() - {*USES, "page"}  # which test_page.py calls
    assert not new, f"give {new} a call in USES"
    guide = Path(built_in.__file__).parents[2] / "docs" / "tools.md"
    text = guide.read_text(encoding="utf-8")
    unnamed = [name for name in tools if f"`{name}`" not in text]
    assert not unnamed, f"name {unnamed} in {guide}"

    def call(name, arguments):
        if problem := misfit_of(tools, name, arguments):
            raise ToolError(problem)
        return tools[name].run(arguments, threading.Event())

    for name, (arguments, text, wrong, reason) in USES.items():
        assert text in call(name, arguments), name
        with pytest.raises(UserError, match=re.escape(reason)):
            call(name, wrong)
        with pytest.raises(ToolError, match="there is no argument 'nonsense'"):
            call(name, arguments | {"nonsense": 1})
        asks = name == "python"
        assert tools[name].asks == tools[name].asks_each_time == asks, f"{name}: asks is {asks}"
        assert tools[name].description.endswith("."), f"{name}: its description is a sentence"


def test_a_tool_there_is_not_is_named():
    with pytest.raises(ToolError, match="there is no tool 'calculater'; did you mean 'calculator'"):
        find_tools().chosen(["calculater"])
    assert misfit_of(find_tools().tools, "calculater", {}).startswith("there is no tool")
    assert list(find_tools().chosen(["clock", "clock"])) == ["clock"]


def test_an_error_is_an_outcome():
    tool = find_tools().tools["calculator"]
    outcome = run(tool, {"expression": "1/0"}, threading.Event())
    assert outcome == Outcome("failed", "error: it divides by zero")
