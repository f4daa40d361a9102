"""F1: what it lists, where it begins, and its search."""

from textual.widgets import Static
from tui_driver import fill

from chatapp.common.settings import KeyChoice, Settings
from chatapp.dialogue.documents.sources import Source
from chatapp.tui.chat.help import HelpScreen
from chatapp.tui.screens.history import HistoryScreen
from chatapp.tui.screens.parameters import ParametersScreen
from chatapp.tui.screens.texts import SourceScreen


async def test_f1_begins_with_where_one_is(open_app, store):
    chat_id = fill(store, ["Hello", "Good day."])
    async with open_app(chat_id=chat_id) as driver:
        for keys, title in (
            ((), "Writing"),
            (("ctrl+up",), "On a message"),
            (("ctrl+o",), "List of chats"),
        ):
            await driver.press(*keys)
            if title == "List of chats":
                await driver.until(lambda: isinstance(driver.app.screen, HistoryScreen))
            await driver.opens(HelpScreen, "f1")
            await driver.until(lambda: driver.app.screen.query(".heading"))
            assert str(driver.app.screen.query(".heading").first(Static).content) == title
            await driver.press("escape")


async def test_f1_searches_keys_and_commands(open_app):
    async with open_app() as driver:
        await driver.press("f1", *"markd")
        await driver.until(lambda: "Regenerate" not in driver.screen_text)
        assert "/markdown on|off" in driver.screen_text
        assert "Another reply" not in driver.screen_text
        await driver.shows("No key and no command matches.", *"[b]")
        await driver.press("ctrl+u", *"rename")
        await driver.until(lambda: "On a message" not in driver.screen_text)
        assert "Rename" in driver.screen_text


async def test_an_action_is_found_by_its_label_and_by_what_others_call_it(open_app, store):
    chat_id = fill(store, ["Hello", "Good day."])
    async with open_app(chat_id=chat_id) as driver:
        await driver.press("f1")
        for word in ("regenerate", "retry"):
            await driver.press("ctrl+u", *word)
            await driver.until(lambda: "Writing" not in driver.screen_text)
            assert "r  " in driver.screen_text
            assert "Another reply to the same message" in driver.screen_text
            await driver.shows("Writing", "ctrl+u")
        await driver.shows("Another reply to the same message", "escape", "ctrl+p", *"retry")


async def test_a_rebound_help_key_is_heard_over_the_chat(open_app):
    settings = Settings(keys=(KeyChoice("help", "f9", "settings.toml"),))
    source = Source(file="tides.md", place="Tides", text="The sea.", score=1.0, number=1)
    async with open_app(settings=settings) as driver:
        for screen in (SourceScreen([source]), ParametersScreen):
            if isinstance(screen, SourceScreen):
                driver.app.push_screen(screen)
            else:
                await driver.press("f2")
            await driver.settle()
            await driver.opens(HelpScreen, "f9")
            await driver.press("f9")
            await driver.until(lambda: not isinstance(driver.app.screen, HelpScreen))
            await driver.back("escape")
