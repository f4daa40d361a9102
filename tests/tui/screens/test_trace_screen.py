"""Which words of a reply stand in its training files is found in a process of its own."""

import sys
from pathlib import Path

import pytest
from fakes import ScriptedModel
from textual.content import Content
from textual.widgets import Static

from chatapp.tui.chat import messages
from chatapp.tui.screens.teaching import TraceScreen, trace_command

TRACES = """
import json, sys
copy = {"text": "[b]here", "start": 0, "end": 7, "words": 4, "count": 2, "row": "a.txt, line 1"}
nats = {"model": 2.5, "ngram": 3.25}
print(json.dumps({"reply": sys.argv[2], "copies": [copy], "words": 4, "nats_per_word": nats}))
"""


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


async def press_i(driver):
    await driver.say("Where?")
    await driver.press("ctrl+up", "i")


def test_a_reply_that_begins_with_a_dash_is_no_option():
    made = trace_command(Path("runs/a"), "--verbatim")
    assert made[-6:] == ["-m", "finetune", "trace", "runs/a", "--reply=--verbatim", "--json"]


async def test_copies_are_underlined_and_located(open_app, monkeypatch, run):
    def command(*arguments):
        return [sys.executable, "-c", TRACES, *map(str, arguments)]

    monkeypatch.setattr(messages, "trace_command", command)
    async with open_app(ScriptedModel(["[b]here"], name=str(run))) as driver:
        await press_i(driver)
        await driver.shows("“[b]here”")
        assert isinstance(driver.app.screen, TraceScreen)
        assert "“[b]here”: 4 words, 2 times, first in a.txt, line 1" in driver.screen_text
        assert "2.50 nats a word by the model, 3.25 by the n-grams" in driver.screen_text
        answer = driver.app.screen.query_one("#answer", Static).content
        assert isinstance(answer, Content)
        assert [(span.start, span.end) for span in answer.spans] == [(0, 7)]
        await driver.press("escape")
        assert driver.app.screen is driver.chat


async def test_a_model_that_is_no_run_is_named(open_app, run):
    async with open_app(ScriptedModel(["here"], name=str(run))) as driver:
        await press_i(driver)
        await driver.shows("Esc closes")
        assert "expected the folder of a run" in driver.sentences
