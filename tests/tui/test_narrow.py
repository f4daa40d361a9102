"""A terminal of a few columns or rows: something or nothing is drawn, and the program lives on."""

import pytest
from fakes import ScriptedModel

from chatapp.tui.widgets.dialog import PlainOptions

SIZES = [(width, height) for width in (0, 1, 2, 3, 5, 8, 12) for height in (0, 1, 2, 6)]


async def squeeze(driver, sizes):
    for size in sizes:
        await driver.pilot.resize_terminal(*size)
        await driver.pilot.pause()


async def test_a_chat_lives_through_every_size(open_app):
    async with open_app(ScriptedModel(["one two three"])) as driver:
        await driver.say("Hello there")
        await squeeze(driver, SIZES)
        for size in SIZES[:3]:
            await squeeze(driver, [size, (200, 60)])
        assert "Hello there" in driver.screen_text


@pytest.mark.parametrize("key", ["f1", "f3", "f4", "f7", "f8", "f2", "ctrl+p"])
async def test_a_screen_opens_and_closes_in_a_narrow_terminal(open_app, key):
    async with open_app(ScriptedModel(["one two three"])) as driver:
        await driver.say("Hello there")
        await squeeze(driver, [(3, 2)])
        await driver.press(key)
        await squeeze(driver, [(1, 1), (9, 3), (100, 30), (2, 40)])
        await driver.press("escape")
        await squeeze(driver, [(100, 30)])
        assert "Hello there" in driver.screen_text


async def test_the_program_starts_in_a_narrow_terminal(open_app):
    async with open_app(ScriptedModel(["one two three"]), size=(2, 1)) as driver:
        await squeeze(driver, [(100, 30)])
        assert "Three things to try" in driver.screen_text


@pytest.mark.parametrize("width", [0, 1, 2, 3])
async def test_a_list_without_room_is_drawn(open_app, width):
    async with open_app() as driver:
        options = PlainOptions("a line of text")
        options.styles.width, options.styles.height = width, "auto"
        await driver.chat.mount(options)
        await squeeze(driver, [(100, 30), (40, 20)])
        assert driver.app.failure is None
