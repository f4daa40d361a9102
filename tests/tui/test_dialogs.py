"""Screens over the chat are left once, however fast the keys come."""

import pytest
from conftest import Driver, OpenApp
from fakes import ScriptedModel
from textual.command import CommandPalette

from chatapp.tui.history import HistoryScreen
from chatapp.tui.library import LibraryScreen


async def open_dialog(driver: Driver, key: str) -> None:
    """Press a key, and wait until what it opens has listed what there is."""
    before = driver.app.screen
    await driver.press(key)
    await driver.until(lambda: driver.app.screen is not before)
    screen = driver.app.screen
    await driver.until(
        lambda: all(each.is_finished for each in driver.app.workers if each.node is screen)
    )


@pytest.mark.parametrize(
    "keys", [("enter", "enter"), ("enter", "enter", "enter"), ("enter", "escape")]
)
@pytest.mark.parametrize("opened_by", ["ctrl+o", "ctrl+b", "f2", "f5", "ctrl+p"])
async def test_a_second_enter_leaves_no_second_screen(
    open_app: OpenApp, opened_by: str, keys: tuple[str, ...]
) -> None:
    async with open_app(ScriptedModel(["One.", "Two."])) as driver:
        await driver.say("Hello")
        await driver.press("ctrl+n")
        await driver.say("And you?")
        await open_dialog(driver, opened_by)
        for key in keys:  # at once: the first has not been seen to when the second comes
            driver.app.simulate_key(key)
        await driver.until(
            lambda: (
                not isinstance(driver.app.screen, HistoryScreen | LibraryScreen | CommandPalette)
            )
        )
        await driver.settle()
        assert driver.app.is_running
        assert driver.chat in driver.app.screen_stack
