"""The list of chats beside the chat: when it is there, what it finds, what opens from it."""

from fakes import ScriptedModel
from textual.widgets import Input
from tui_driver import fill

from chatapp.common.paths import settings_path
from chatapp.common.settings import load_settings
from chatapp.dialogue.store import Store
from chatapp.tui.chat.parts import Sidebar
from chatapp.tui.screens.history import FoundChats

WIDE = (130, 40)


def sidebar(driver):
    return driver.chat.query_one(Sidebar)


def titles(driver):
    options = sidebar(driver).query_one(FoundChats).options
    return [str(option.prompt).split("\n")[0] for option in options]


async def listed(driver, *expected):
    await driver.until(lambda: titles(driver) == list(expected))


async def test_it_is_there_from_130_columns_on(open_app, store):
    fill(store, ["The sea", "It is wide."])
    async with open_app(size=(129, 40)) as driver:
        assert not sidebar(driver).display
        await driver.press("ctrl+l")
        assert "from 130 columns on; Ctrl+O opens it" in driver.notices[-1]
        await driver.pilot.resize_terminal(*WIDE)
        await listed(driver, "The sea")
        assert sidebar(driver).region.x == 0
        await driver.pilot.resize_terminal(60, 20)
        await driver.settle()
        assert not sidebar(driver).display


async def test_it_follows_the_chat(open_app):
    async with open_app(ScriptedModel(["Yes."]), size=WIDE) as driver:
        await driver.shows("No chats yet.")
        await driver.say("Do you like tea?")
        await listed(driver, "Do you like tea?")
        await driver.press("ctrl+n")
        await driver.say("[b]Coffee[/b]?")
        await listed(driver, "[b]Coffee[/b]?", "Do you like tea?")
        assert sidebar(driver).query_one(FoundChats).highlighted == 0
        assert "just now · scripted" in driver.screen_text
        await driver.order("/title Drinks")
        await listed(driver, "Drinks", "Do you like tea?")


async def test_what_one_types_is_searched_and_enter_opens_it(open_app, store):
    for text in ("Tell me of ships", "Tell me of trains"):
        fill(store, [text, "Of course."])
    async with open_app(size=WIDE) as driver:
        await listed(driver, "Tell me of trains", "Tell me of ships")
        await driver.press("ctrl+l", "ctrl+l")
        assert sidebar(driver).query_one(Input).has_focus
        await driver.press(*"ships")
        await listed(driver, "Tell me of ships")
        await driver.press("enter")
        await driver.until(lambda: driver.texts[:1] == ["Tell me of ships"])
        assert driver.prompt.has_focus
        await listed(driver, "Tell me of trains", "Tell me of ships")
        await driver.press("ctrl+l", "ctrl+l", "down", "up", "enter")
        await driver.until(lambda: driver.texts[:1] == ["Tell me of trains"])
        await driver.shows("No chat has these words.", "ctrl+l", "ctrl+l", *"zebra")
        await driver.press("enter", "escape")
        assert driver.prompt.has_focus


async def test_ctrl_l_hides_it_and_brings_it_back(open_app):
    async with open_app(size=WIDE) as driver:
        width = driver.prompt.region.x
        await driver.press("ctrl+l")
        assert not sidebar(driver).display
        assert driver.prompt.has_focus
        assert driver.prompt.region.x < width
        await driver.pilot.resize_terminal(200, 60)
        await driver.settle()
        assert not sidebar(driver).display, "it stays hidden"
        await driver.press("ctrl+l")
        assert sidebar(driver).display
        await driver.press("ctrl+l")
        assert driver.prompt.has_focus


async def test_hidden_it_stays_hidden_at_the_next_start(open_app):
    async with open_app(size=WIDE, settings=load_settings()) as driver:
        await driver.press("ctrl+l")
    async with open_app(size=WIDE, settings=load_settings()) as driver:
        assert not sidebar(driver).display
        await driver.press("ctrl+l")
        assert sidebar(driver).display
    async with open_app(size=WIDE, settings=load_settings()) as driver:
        assert sidebar(driver).display
    kept = settings_path().read_text()
    async with open_app(size=WIDE, settings=load_settings(), own_store=Store(None)) as driver:
        await driver.press("ctrl+l")
        assert not sidebar(driver).display
    assert settings_path().read_text() == kept, "an unsaved chat stores nothing"


async def test_three_columns_share_the_room(open_app):
    async with open_app(size=WIDE) as driver:
        await driver.press_and_rest("f3")
        columns = [
            sidebar(driver),
            driver.chat.query_one("#desk"),
            driver.chat.query_one("Inspector"),
        ]
        assert [column.region.width for column in columns] == [28, 50, 52]
        assert [column.region.x for column in columns] == [0, 28, 78]
