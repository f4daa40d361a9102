"""What was said of replies is learnt from in a process of its own, and its model can be used."""

import asyncio
import sys

from fakes import ScriptedModel

from chatapp.engine.models import loading
from chatapp.tui.chat import model_actions
from chatapp.tui.screens import teaching as learning
from chatapp.tui.screens.teaching import LearnScreen

LEARNS = """
import os, sys
print("8 corrections: [b] \\x1b[2J", sys.argv[1:], os.environ["COLUMNS"], file=sys.stderr)
print("runs/feedback-1")
"""
REFUSES = "import sys; sys.exit('there is not enough feedback to learn from')"
WAITS = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
try:
    print("waiting", file=sys.stderr, flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    sys.exit("stopped at step 3")
"""


def use(monkeypatch, script):
    monkeypatch.setattr(
        model_actions, "command", lambda model: [sys.executable, "-c", script, model]
    )


async def learn(driver):
    await driver.until(lambda: driver.chat.conversation.session is not None)
    await driver.order("/learn")
    await driver.until(lambda: isinstance(driver.app.screen, LearnScreen))
    screen = driver.app.screen
    assert isinstance(screen, LearnScreen)
    return screen


def test_the_command_is_that_of_a_terminal():
    made = learning.command("./my-run")
    assert made[made.index("-m") :] == ["-m", "finetune", "feedback", "--model", "./my-run"]


async def test_the_new_model_is_gone_on_with(open_app, monkeypatch):
    use(monkeypatch, LEARNS)
    asked = []

    def load_model(name, **_):
        asked.append(name)
        return ScriptedModel(["New."], name=name)

    async with open_app(ScriptedModel(["Old."], name="old")) as driver:
        monkeypatch.setattr(loading, "load_model", load_model)
        await learn(driver)
        await driver.shows("The new model is runs/feedback-1")
        assert "8 corrections: [b]" in driver.screen_text
        assert "['old'] 87" in driver.screen_text
        await driver.press("enter")
        await driver.until(lambda: driver.chat.widgets.status.model == "runs/feedback-1")
        assert asked == ["runs/feedback-1"]


async def test_what_is_missing_is_told_and_the_chat_goes_on(open_app, monkeypatch):
    use(monkeypatch, REFUSES)
    async with open_app(ScriptedModel(["Old."], name="old")) as driver:
        await learn(driver)
        await driver.shows("Esc closes")
        assert "there is not enough feedback" in driver.screen_text
        await driver.press("enter")  # there is nothing to go on with
        assert isinstance(driver.app.screen, LearnScreen)
        await driver.press("escape")
        assert driver.app.screen is driver.chat
        assert driver.chat.widgets.status.model == "old"


async def test_escape_stops_it_as_ctrl_c_would(open_app, monkeypatch):
    use(monkeypatch, WAITS)
    async with open_app() as driver:
        await learn(driver)
        await driver.shows("waiting")
        await driver.shows("Esc closes", "escape")
        assert "stopped at step 3" in driver.screen_text
        await driver.press("escape")
        assert driver.app.screen is driver.chat


async def test_it_does_not_outlive_its_screen(open_app, monkeypatch):
    use(monkeypatch, WAITS)
    async with open_app() as driver:
        screen = await learn(driver)
        await driver.shows("waiting")
        process = screen._process
        assert process is not None
        screen.dismiss(None)
        assert await asyncio.wait_for(process.wait(), 120) != 0
