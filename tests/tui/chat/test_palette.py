"""The command palette knows every action, its key, and does it."""

import re

import pytest
from fakes import ScriptedModel
from textual.command import CommandPalette
from textual.widgets import OptionList
from thinking_model import thinking_model

from chatapp.common.settings import KeyChoice, Settings
from chatapp.tui.app import ChatApp
from chatapp.tui.chat.help import HelpScreen
from chatapp.tui.chat.messages import ChatMessage
from chatapp.tui.chat.screen import ChatScreen
from chatapp.tui.screens.history import HistoryScreen
from chatapp.tui.widgets.prompt import PromptInput


def lines(driver):
    """What the palette lists."""
    return [str(option.prompt) for option in driver.app.screen.query_one(OptionList).options]


def has_searched(driver):
    """Whether the palette lists all that it finds."""
    screen = driver.app.screen
    return all(each.is_finished for each in driver.app.workers if each.node is screen)


async def open_palette(driver, query, listed):
    """Open the palette, write a query and wait for what it finds."""
    await driver.opens(CommandPalette, "ctrl+p")
    await driver.press(*query)
    await driver.until(lambda: has_searched(driver) and (found := lines(driver)) and listed(found))


async def choose(driver, query, line):
    """Open the palette and choose the first line that it finds, which is this one."""
    await open_palette(driver, query, lambda found: line in found[0])
    palette = driver.app.screen
    await driver.until(lambda: palette.query_one(OptionList).highlighted == 0)
    await driver.press("enter")
    await driver.until(lambda: driver.app.screen is not palette)


async def test_every_action_is_listed_once_with_its_key(open_app, tmp_path):
    settings = Settings(keys=(KeyChoice("branches", "ctrl+t", "x"),))
    model = thinking_model(tmp_path / "model", ["<think>Hm.</think>Yes:\n```\nx\n```"])
    async with open_app(model, settings=settings) as driver:
        await driver.say("Hello")
        await driver.press("ctrl+up", "r")  # only two versions can be ranked
        await driver.idle()
        await open_palette(driver, "", lambda found: any("Theme: nord" in each for each in found))
        found = lines(driver)
        by_key = [each for each in found if "  /" not in each]  # the others are commands
        for place in (ChatApp, ChatScreen, PromptInput, ChatMessage):
            for entry in place.ACTIONS:
                # Nothing is to be completed or downloaded, and no document was looked up.
                times = 0 if entry.name in ("complete", "sources", "larger") else 1
                starts = [each.startswith(f"{entry.words}  ") for each in by_key]
                assert not entry.key or sum(starts) == times, entry.words
                if entry.command:
                    ends = [each.endswith(f" /{entry.command}") for each in found]
                    assert sum(ends) == 1, entry.command
        assert "All branches of this chat  Ctrl+T /branches" in found
        assert "Message above  ↑ Ctrl+↑" in found
        assert "Start a new chat  Ctrl+N /new" in found


async def test_it_does_what_is_chosen(open_app):
    async with open_app(ScriptedModel(["One.", "Two."])) as driver:
        await driver.say("Hello")
        await choose(driver, "another reply", "Another reply")
        await driver.until(lambda: driver.texts == ["Hello", "Two."])
        await driver.idle()
        await choose(driver, "theme: nord", "Theme: nord")
        await driver.until(lambda: driver.app.theme == "nord")
        await choose(driver, "chat's instructions", "/system")
        await driver.until(lambda: driver.prompt.text == "/system ")
        await choose(driver, "all keys", "Search all keys and commands")
        await driver.until(lambda: isinstance(driver.app.screen, HelpScreen))


async def test_on_another_screen_it_lists_what_that_can_do(open_app):
    async with open_app() as driver:
        await driver.opens(HistoryScreen, "ctrl+o")
        await open_palette(driver, "", lambda found: any("Theme: nord" in each for each in found))
        assert not [each for each in lines(driver) if "/system" in each or "Another reply" in each]
        assert [each for each in lines(driver) if each.startswith("Quit the program")]
        await driver.opens(HistoryScreen, "escape")


@pytest.mark.parametrize("suffix", ["svg", "png"])
async def test_it_saves_the_screen(open_app, tmp_path, monkeypatch, suffix):
    monkeypatch.chdir(tmp_path)
    async with open_app() as driver:
        await driver.say("Hello there")
        await choose(driver, f"as {suffix.upper()}", f"as {suffix.upper()}")
        await driver.until(lambda: any("is saved as" in notice for notice in driver.notices))
        (path,) = tmp_path.glob(f"chatapp-*.{suffix}")
        data = path.read_bytes()
        if suffix == "png":
            assert data.startswith(b"\x89PNG")
            assert len(set(data)) > 200
        else:
            picture = re.sub(r"&#160;", " ", data.decode())
            assert "Hello there" in picture
            assert "Save the screen" not in picture, "the palette itself is not on it"
