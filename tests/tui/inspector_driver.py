"""The inspector under test: its parts, and what they show."""

import io

from rich.console import Console, Group
from textual.widgets import OptionList, Static
from tui_driver import Driver

from chatapp.common.settings import Settings
from chatapp.engine.model import Sampling
from chatapp.tui.inspector.panel import Inspector
from chatapp.tui.inspector.token_choice import TokenText
from chatapp.tui.inspector.view import InspectorTab

SETTINGS = Settings(sampling=Sampling(seed=5, max_tokens=12))


def inspector(driver: Driver) -> Inspector | None:
    return next(iter(driver.chat.query(Inspector)), None)


def words(driver: Driver, id: str) -> str:
    """What a line shows; what is drawn with Rich, as a terminal of 200 columns has it."""
    content = driver.chat.query_one(f"#{id}", Static).content
    if not isinstance(content, Group):
        return str(content)
    console = Console(width=200, file=io.StringIO())
    console.print(content)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def text_of(driver: Driver, view: type[InspectorTab]) -> TokenText:
    return driver.chat.query_one(view).query_one(TokenText)


def notes(driver: Driver) -> str:
    return "\n".join(notification.message for notification in driver.app._notifications)


def alternatives(driver: Driver) -> list[str]:
    options = driver.chat.query_one("#tokens-alternatives", OptionList)
    return [str(option.prompt) for option in options.options]


async def go_to(driver: Driver, text: TokenText, position: int) -> None:
    text.focus()
    text._go(position)
    await driver.rest()
    assert text.cursor == position
