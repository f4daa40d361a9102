"""Screens over the chat are left once, however fast the keys come, whatever they wait for."""

import threading

import pytest
from fakes import ScriptedModel
from textual.command import CommandPalette

from chatapp.dialogue.store.database import StoreError
from chatapp.tui.screens.branches import BranchScreen
from chatapp.tui.screens.history import HistoryScreen
from chatapp.tui.screens.library import LibraryScreen


async def open_dialog(driver, key):
    """Press a key, and wait until what it opens has listed what there is."""
    before = driver.app.screen
    await driver.press(key)
    await driver.until(lambda: driver.app.screen is not before)
    screen = driver.app.screen
    await driver.until(
        lambda: all(each.is_finished for each in driver.app.workers if each.node is screen)
    )


@pytest.mark.parametrize("opened_by", ["ctrl+o", "ctrl+b", "f2", "f5", "ctrl+p"])
async def test_a_second_enter_leaves_no_second_screen(open_app, opened_by):
    async with open_app(ScriptedModel(["One.", "Two."])) as driver:
        await driver.say("Hello")
        await driver.press("ctrl+n")
        await driver.say("And you?")
        for keys in (("enter", "enter"), ("enter", "enter", "enter"), ("enter", "escape")):
            await open_dialog(driver, opened_by)
            for key in keys:  # at once: the first has not been seen to when the second comes
                driver.app.simulate_key(key)
            await driver.until(
                lambda: (
                    not isinstance(
                        driver.app.screen, HistoryScreen | LibraryScreen | CommandPalette
                    )
                )
            )
            await driver.settle()
            assert driver.app.is_running
            assert driver.chat in driver.app.screen_stack
            while driver.app.screen is not driver.chat:
                await driver.press_and_rest("escape")


async def test_the_key_of_another_dialog_leads_there(open_app):
    async with open_app() as driver:
        for key, kind in (("f5", LibraryScreen), ("ctrl+o", HistoryScreen)):
            await open_dialog(driver, key)
            await driver.until(lambda kind=kind: isinstance(driver.app.screen, kind))
            assert len(driver.app.screen_stack) == 2


@pytest.mark.parametrize(
    ("key", "method", "screen"),
    [("ctrl+o", "chats", HistoryScreen), ("ctrl+b", "tree", BranchScreen)],
)
async def test_what_comes_after_a_screen_was_left_is_shown_nowhere(
    open_app, store, monkeypatch, key, method, screen
):
    asked, answer = threading.Event(), threading.Event()

    def slow(*_, **__):
        asked.set()
        answer.wait(120)
        raise StoreError("the disk is gone")

    async with open_app(ScriptedModel(["One."])) as driver:
        await driver.say("Hello")
        monkeypatch.setattr(store, method, slow)
        await driver.press(key)
        await driver.until(asked.is_set)
        left = driver.app.screen
        assert isinstance(left, screen)
        left.dismiss(None)
        waiting = [worker for worker in driver.app.workers if worker.node is left]
        assert waiting
        assert all(worker.is_cancelled for worker in waiting)
        answer.set()
        await driver.until(lambda: driver.app.screen is driver.chat)
        await driver.settle()
        assert driver.app.is_running
