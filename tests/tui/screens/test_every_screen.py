"""Every screen over the chat is opened as a user opens it, explains its keys, and is left again."""

import importlib
import inspect
import json
import pkgutil
import sys

import pytest
from fakes import ScriptedModel
from scenes import SEA, WIDE
from screen_scenes import compare, learn, list_models, open_branches, rank, read_source

from chatapp.tui import screens
from chatapp.tui.chat.help import HelpScreen
from chatapp.tui.platform.actions import written
from chatapp.tui.screens.teaching import TraceScreen
from chatapp.tui.widgets.dialog import LeftOnce


async def open_history(driver):
    await driver.say("Tell me about the sea.")
    await driver.press("ctrl+o")


async def open_parameters(driver):
    await driver.press("f2")


async def open_page(driver):
    await driver.order("/set")


async def open_prompts(driver):
    await driver.press("f5")


async def copy(driver):
    await driver.say("Tell me about the sea.")
    await driver.press("f12")


async def trace(driver):
    copies = {"reply": SEA, "copies": [], "words": 1, "nats_per_word": {"model": 1, "ngram": 2}}
    command = [sys.executable, "-c", f"print({json.dumps(copies)!r})"]
    driver.app.push_screen(TraceScreen(driver.chat.conversation, command))
    await driver.shows("2.00 by the n-grams")


WAYS = {
    "BranchScreen": open_branches,
    "CompareScreen": compare,
    "CopyScreen": copy,
    "HistoryScreen": open_history,
    "LearnScreen": learn,
    "LibraryScreen": open_prompts,
    "ModelScreen": list_models,
    "PageScreen": open_page,
    "ParametersScreen": open_parameters,
    "RankScreen": rank,
    "SourceScreen": read_source,
    "TraceScreen": trace,
}
"""What a user does to open each, by the name of its class."""


def every_screen():
    for module in pkgutil.iter_modules(screens.__path__):
        loaded = importlib.import_module(f"{screens.__name__}.{module.name}")
        for value in vars(loaded).values():
            is_own = inspect.isclass(value) and value.__module__ == loaded.__name__
            if is_own and issubclass(value, LeftOnce) and not value.__subclasses__():
                yield value


@pytest.mark.parametrize("kind", every_screen(), ids=lambda kind: kind.__name__)
async def test_f1_explains_its_keys_and_esc_leads_back(open_app, stage, kind):
    async with open_app(ScriptedModel([SEA, WIDE]), size=(100, 40)) as driver:
        await WAYS[kind.__name__](driver)
        await driver.until(lambda: isinstance(driver.app.screen, kind))
        opened = driver.app.screen
        await driver.worked()

        await driver.opens(HelpScreen, "f1")
        await driver.pilot.resize_terminal(100, 300)  # to see all of it
        await driver.until(lambda: driver.app.screen.query(".heading"))
        headings = [str(line.content) for line in driver.app.screen.query(".heading")]
        where = headings.index(kind.BINDING_GROUP_TITLE)
        assert where < headings.index("Commands, written in place of a message")
        region = [*driver.app.screen.query(".keys")][where].region
        shown = "\n".join(driver.screen_text.splitlines()[region.y : region.bottom])
        for entry in kind.ACTIONS:
            assert entry.words in shown
            assert all(written(key) in shown for key in entry.keys({}))

        await driver.press("escape")
        await driver.until(lambda: driver.app.screen is opened)
        await driver.back("escape")
