"""Every screen works in a small terminal of few colours, every action has a key, F1 tells it."""

import importlib
import io
import pkgutil

import pytest
from fakes import ScriptedModel
from glass import GlassModel
from rich.color import ColorSystem
from rich.console import Console
from scenes import PLACES
from textual.actions import parse
from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static, TextArea
from tui_driver import Driver, fill

import chatapp.tui
from chatapp.common.settings import Settings
from chatapp.tui.app import ChatApp
from chatapp.tui.chat.help import HelpScreen
from chatapp.tui.platform.actions import listed_actions, places, written

BY_OTHER_KEYS = {
    "ask",  # Enter where nothing is written
    "focus_below",  # ↓ on the last line
    "show_version",  # the arrows where nothing is written
}


def own_places():
    """Every class of the screens that is part of the tree."""
    for module in pkgutil.walk_packages(chatapp.tui.__path__, "chatapp.tui."):
        importlib.import_module(module.name)
    found = []
    waiting = [DOMNode]
    while waiting:
        place = waiting.pop()
        waiting += place.__subclasses__()
        if place.__module__.startswith("chatapp.tui"):
            found.append(place)
    return sorted(set(found), key=lambda place: place.__name__)


async def text_of_f1(driver):
    await driver.press("f1")
    screen = driver.app.screen
    assert isinstance(screen, HelpScreen)
    console = Console(width=200, file=io.StringIO())
    for section in screen.query(".keys").results(Static):
        console.print(section.content)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


async def test_f1_tells_every_key(open_app):
    async with open_app() as driver:
        text = await text_of_f1(driver)
        entries = [entry for place in places() for entry in listed_actions(place)]
        assert len(entries) > 150
        for entry in entries:
            rows = [row for row in text.splitlines() if row.rstrip().endswith(entry.words)]
            for key in entry.keys({}):
                assert any(written(key) in row.split() for row in rows), f"{key}: {entry.words}"


def test_every_action_has_a_key():
    textual = (Screen, Input, OptionList, TextArea)
    bound = {
        name
        for place in (*own_places(), *textual)
        for binding in Binding.make_bindings(place.BINDINGS)
        for _, name, _ in [parse(binding.action)]
    }
    bound |= {entry.method for place in places() for entry in place.ACTIONS if entry.command}
    actions = {
        name.removeprefix("action_")
        for place in own_places()
        for name in vars(place)
        if name.startswith("action_")
    }
    assert len(actions) > 40
    assert actions - bound == BY_OTHER_KEYS


async def go_to(driver, place):
    await driver.idle()
    for key in PLACES[place]:
        await driver.press(key)
        await driver.idle()
    await driver.worked()


@pytest.fixture
def chat(store):
    """A chat whose last message was answered twice."""
    chat_id = fill(store, ["Tell me about the sea.", "It is wide. " * 30])
    store.add_message(chat_id, 1, "assistant", "It is [b]salt[/b].")
    return chat_id


@pytest.mark.parametrize("place", PLACES)
async def test_a_small_terminal_of_sixteen_colours(open_app, chat, place, monkeypatch):
    monkeypatch.delenv("COLORTERM")
    monkeypatch.setenv("TERM", "xterm")
    async with open_app(GlassModel(["It is."]), chat_id=chat, size=(60, 20)) as driver:
        await go_to(driver, place)
        focused = driver.app.focused
        assert focused.region.overlaps(driver.app.screen.region)
        for strip in driver.app.screen._compositor.render_strips():
            for text, style, _ in strip:
                if style is None or not text.strip() or not (style.color and style.bgcolor):
                    continue
                ink, paper = (
                    color.downgrade(ColorSystem.STANDARD) for color in (style.color, style.bgcolor)
                )
                assert ink.is_default or ink != paper, text


@pytest.mark.parametrize("place", ["first run", "history", "branches", "ranking", "models"])
async def test_the_chosen_line_shows_without_colours(open_app, chat, place, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with open_app(GlassModel(["It is."]), chat_id=chat, size=(60, 20)) as driver:
        await go_to(driver, place)
        options = next(each for each in driver.app.screen.query(OptionList) if each.region)
        options.focus()
        await driver.settle()
        chosen = options.highlighted
        assert chosen is not None
        lines = {place: list(options.render_line(y)) for y, (place, _) in enumerate(options._lines)}
        marked = {
            place
            for place, (first, *_) in lines.items()
            if (first.style and first.style.underline) or first.text.startswith("›")
        }
        assert marked == {chosen}


async def test_a_notice_is_whole_in_a_small_terminal_and_above_the_prompt(store):
    app = ChatApp(Settings(), load=lambda: ScriptedModel(["Hi."]), store=store)
    async with app.run_test(size=(60, 20), notifications=True) as pilot:
        driver = Driver(app, pilot)
        await driver.ready()
        words = "There is no reply here to make another version of, as there was one before."
        app.notify(words, timeout=1_000, markup=False)
        await driver.shows("▌ There is")
        rows = driver.screen_text.splitlines()
        shown = [row.split("▌")[1].strip() for row in rows if "▌" in row]
        assert " ".join(shown) == words
        assert any("Write a message · Enter sends, Ctrl+J" in row for row in rows)
