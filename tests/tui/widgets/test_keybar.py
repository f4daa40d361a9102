"""The keys in the last row."""

import pytest
from fakes import ScriptedModel
from textual.app import App
from tui_driver import Driver

from chatapp.common.settings import Settings
from chatapp.tui.app import ChatApp
from chatapp.tui.widgets.status import KeyBar


def last_row(driver):
    return driver.screen_text.split("\n")[-1].strip()


async def test_they_are_there_before_the_focus(store):
    app = ChatApp(Settings(), load=lambda: ScriptedModel(["Yes."]), store=store)
    app.set_reactive(App.app_focus, False)
    async with app.run_test(size=(100, 30)) as pilot:
        driver = Driver(app, pilot)
        await driver.ready()
        await driver.shows("^Q Quit")


@pytest.mark.parametrize("width", [30, 40, 50, 60, 80, 100, 130])
async def test_what_does_not_fit_is_left_out_from_the_end(open_app, width):
    async with open_app(size=(width, 20)) as driver:
        await driver.say("Hello")
        for keys in ([], ["ctrl+up"]):
            await driver.press(*keys)
            row = last_row(driver)
            assert row.endswith("F1 Help ^Q Quit")
            assert len(row) <= driver.chat.query_one(KeyBar).content_size.width <= width
        assert ("Regenerate" in row) == (width >= 40)


async def test_a_key_can_be_clicked(open_app):
    async with open_app() as driver:
        bar = driver.chat.query_one(KeyBar)
        await driver.pilot.click(KeyBar, offset=(last_row(driver).index("F1") + 2, 0))
        await driver.until(lambda: driver.app.screen is not bar.screen)
