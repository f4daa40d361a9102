"""The keys in the last row."""

from conftest import Driver
from fakes import ScriptedModel
from textual.app import App
from textual.events import AppFocus

from chatapp.dialogue.store import Store
from chatapp.settings import Settings
from chatapp.tui.app import ChatApp


async def test_they_are_there_when_the_focus_comes_late(store: Store) -> None:
    app = ChatApp(Settings(), load=lambda: ScriptedModel(["Yes."]), store=store)
    app.set_reactive(App.app_focus, False)
    async with app.run_test(size=(100, 30)) as pilot:
        driver = Driver(app, pilot)
        await driver.ready()
        assert "^q Quit" not in driver.screen_text
        app.post_message(AppFocus())
        await driver.until(lambda: "^q Quit" in driver.screen_text)
