"""Thumbs, corrections and rankings, given by keyboard and kept in the store."""

import pytest
from fakes import ScriptedModel
from textual.widgets import OptionList

from chatapp.dialogue.store.rows import Feedback
from chatapp.tui.screens.branches import RankScreen

FOREIGN = "[b]x[/b] \x1b[2J"


def header(driver):
    """The first row of the last message."""
    return str(driver.transcript.views[-1]._header.content)


async def test_plus_and_minus_are_thumbs(open_app, store):
    async with open_app() as driver:
        await driver.say("Hello")
        await driver.press("ctrl+up", "plus")
        assert store.feedback(1)[2].thumb == 1
        assert header(driver) == "Assistant  good"
        await driver.press("minus")
        assert store.feedback(1)[2].thumb == -1
        assert header(driver) == "Assistant  bad"
        await driver.press("minus")
        assert store.feedback(1) == {}
        assert header(driver) == "Assistant"
        await driver.press("minus", "up", "plus", "w", "k")  # a message of the user has none
        assert list(store.feedback(1)) == [2]
    async with open_app(chat_id=1) as driver:
        assert header(driver) == "Assistant  bad"
        await driver.press("ctrl+n")
        await driver.say("Again")
        assert header(driver) == "Assistant"


async def test_w_writes_what_it_should_have_been(open_app, store):
    async with open_app(ScriptedModel([FOREIGN, "More."])) as driver:
        await driver.say("Hello")
        await driver.press("ctrl+up", "w")
        assert driver.prompt.text == FOREIGN
        assert "Correction · Enter saves it" in driver.screen_text
        await driver.press("end", *" y", "enter")
        assert store.feedback(1)[2].correction == FOREIGN + " y"
        assert header(driver) == "Assistant  corrected"
        assert "Correction: [b]x[/b] ␛[2J" in driver.screen_text
        assert driver.texts == ["Hello", FOREIGN]
        assert (driver.prompt.text, driver.prompt.editing) == ("", None)
        await driver.press("ctrl+up", "w")
        assert driver.prompt.text == FOREIGN + " y"
        await driver.press("escape")
        assert driver.prompt.text == ""
        await driver.press("ctrl+up", "w", "end", "backspace", "backspace", "enter")
        assert store.feedback(1) == {}  # its own words again
        assert "Correction:" not in driver.screen_text
        await driver.say("Go on")
        assert driver.texts == ["Hello", FOREIGN, "Go on", "More."]


async def test_k_ranks_the_versions(open_app, store):
    async with open_app(ScriptedModel(["First.", FOREIGN, "Third."])) as driver:
        await driver.say("Hello")
        await driver.press("ctrl+up", "k")
        assert driver.app.screen is driver.chat  # there is nothing to rank
        assert "only one version" in driver.notices[-1]
        for _ in range(2):
            await driver.press("r")  # the focus stays on the reply
            await driver.idle()
        await driver.opens(RankScreen, "k")
        options = driver.app.screen.query_one(OptionList)
        assert [str(option.prompt)[:4] for option in options.options] == ["1  F", "2  [", "3  T"]
        assert "2  [b]x[/b] ␛[2J" in driver.screen_text
        await driver.press("u", "down", "down", "u", "shift+up", "d", "d", "u", "u")
        assert options.highlighted == 0
        await driver.back("enter")
        ranks = {said.reply: said.rank for said in store.feedback(1).values()}
        assert ranks == {"Third.": 1, "First.": 2, FOREIGN: 3}
        assert header(driver) == "Assistant  ‹ 3/3 ›  ranked 1"
        await driver.opens(RankScreen, "k")
        options = driver.app.screen.query_one(OptionList)
        assert str(options.options[0].prompt) == "1  Third."
        await driver.press("d", "escape")
        assert store.feedback(1)[4] == Feedback(4, "Third.", 0, 1, None)


@pytest.mark.parametrize("keys", [["plus"], ["w"], ["k"]])
async def test_a_store_that_goes_away_is_told_in_words(open_app, store, keys):
    async with open_app() as driver:
        await driver.say("Hello")
        await driver.press("ctrl+up", "r")
        await driver.idle()
        store.close()
        await driver.press(*keys)
        await driver.until(lambda: "cannot be used" in driver.problem)
