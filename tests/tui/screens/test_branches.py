"""All branches of a chat are shown in order, and any of them can be gone to."""

import pytest
from fakes import ScriptedModel
from textual.widgets import OptionList
from tui_driver import fill

from chatapp.tui.screens.branches import BranchScreen, in_order


async def rows(driver):
    """What the screen of branches lists."""
    await driver.until(
        lambda: (
            isinstance(driver.app.screen, BranchScreen)
            and driver.app.screen.query_one(OptionList).option_count
        )
    )
    return [str(option.prompt) for option in driver.app.screen.query_one(OptionList).options]


def test_a_long_chat_is_no_deep_one(store):
    chat_id = fill(store, ["x"] * 3_000)
    assert {forks for _, forks in in_order(store.tree(chat_id))} == {0}


async def test_ctrl_b_goes_to_any_branch(open_app, store):
    async with open_app(ScriptedModel(["First.", "Second [b].", "Third."])) as driver:
        await driver.press("ctrl+b")
        assert driver.app.screen is driver.chat  # there is no chat yet
        await driver.say("Hello")
        await driver.press("ctrl+up", "r")
        await driver.idle()
        await driver.say("More")
        assert driver.texts == ["Hello", "Second [b].", "More", "Third."]
        await driver.press("ctrl+b")
        assert await rows(driver) == [
            "● You  Hello",
            "  ○ Assistant  ‹ 1/2 › First.",
            "  ● Assistant  ‹ 2/2 › Second [b].",
            "  ● You  More",
            "  ● Assistant  Third.",
        ]
        assert driver.app.screen.query_one(OptionList).highlighted == 4
        await driver.press("up", "up", "up", "enter")
        await driver.until(lambda: driver.texts == ["Hello", "First."])
        assert driver.transcript.marked is driver.transcript.views[-1]
        assert driver.prompt.has_focus  # what is typed next is a message, no command
        await driver.order("/branches")
        await rows(driver)
        await driver.press("end", "enter")
        await driver.until(lambda: len(driver.texts) == 4)


@pytest.mark.parametrize("size", [(60, 20), (100, 30)])
async def test_a_tree_taller_than_the_window_scrolls_inside_its_box(open_app, store, size):
    chat_id = fill(store, [f"item{number}" for number in range(80)])
    async with open_app(chat_id=chat_id, size=size) as driver:
        await driver.press("ctrl+b")
        await rows(driver)
        await driver.settle()
        assert "item79" in driver.screen_text, "the highlighted row"
        assert "Enter goes to a message" in driver.screen_text
        screen = driver.app.screen
        box, options = screen.query_one(".dialog"), screen.query_one(OptionList)
        assert box.content_region.contains_region(options.region)
        assert box.content_region.contains_region(screen.query_one(".hint").region)
