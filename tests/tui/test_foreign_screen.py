"""Whatever a model says or a user pastes changes nothing but the message it belongs to."""

import re

import pytest
from fakes import ScriptedModel
from foreign_texts import FOREIGN, shown
from textual import events
from tui_driver import fill

from chatapp.common.foreign import printable
from chatapp.common.settings import Settings
from chatapp.engine.model import Sampling
from chatapp.tui.screens.history import HistoryScreen
from chatapp.tui.widgets.dialog import Field


def frame(driver):
    """What is on the screen beside the transcript, but for the counts of tokens."""
    region = driver.transcript.region
    rows = shown(driver)
    outside = rows[: region.y] + rows[region.bottom :]
    return [re.sub(r"[━─]+|[\d,]+/[\d,]+ tokens|\d+ tokens/s| +$", "", row) for row in outside]


@pytest.mark.parametrize("name", FOREIGN)
async def test_a_model_says_it(open_app, store, name):
    text = FOREIGN[name]
    said = f"START {text} END"
    model = ScriptedModel(["Fine.", said], context=1_000_000)
    settings = Settings(sampling=Sampling(max_tokens=1_000_000))
    async with open_app(model, settings=settings) as driver:
        await driver.say("Say something.")
        before = frame(driver)
        await driver.say("Go on")
        assert [row.rstrip() for row in frame(driver)] == [row.rstrip() for row in before]
        assert driver.transcript.scroll_y == driver.transcript.max_scroll_y
        if len(text) < 200:
            assert "START" in driver.screen_text
            assert "END" in driver.screen_text
            visible = printable(text).split("\n")[0].split("\t")[0]
            assert visible.strip() in driver.screen_text
        await driver.press("ctrl+up", "y")
        assert len(driver.app.clipboard) >= min(len(text), 1_000)
        await driver.press_and_rest("r")
        shown(driver)


async def test_it_is_the_name_of_a_chat_and_of_a_model(open_app, store):
    for text in FOREIGN.values():
        fill(store, [text[:500] or "x", "reply"])
    model = ScriptedModel(["Fine."], name="[/b]\x1b[2J\nmodel \u202e")
    async with open_app(model, chat_id=1) as driver:
        shown(driver)
        await driver.opens(HistoryScreen, "ctrl+o")
        field = driver.app.screen.query_one(Field)
        await driver.settle()
        shown(driver)
        for text in FOREIGN.values():
            driver.app.post_message(events.Paste(text[:200]))
            await driver.settle()
            shown(driver)
        field.value = "reply"
        await driver.settle()
        shown(driver)


async def test_it_is_what_went_wrong(open_app):
    words = "no [b]model[/b] \x1b[2J here\x07"

    def load():
        raise RuntimeError(words)

    async with open_app(load=load) as driver:
        await driver.until(lambda: driver.problem)
        assert printable(words) in driver.screen_text
        shown(driver)
