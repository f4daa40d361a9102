"""Pictures of the inspector's tabs, compared with those that somebody has looked at."""

from collections.abc import Callable

import pytest
from glass import GlassModel
from test_inspector import rest
from textual.pilot import Pilot
from tui_driver import Driver

from chatapp.common.settings import Settings
from chatapp.dialogue.store import Store
from chatapp.engine.events import Finished
from chatapp.engine.model import Sampling
from chatapp.tui.app import ChatApp
from chatapp.tui.conversation.turn import GrowingReply
from chatapp.tui.widgets.prompt import Prompt

SIZES = {"60x20": (60, 20), "100x30": (100, 30), "130x40": (130, 40), "200x60": (200, 60)}
REPLY = " The sea is a large body of salt water.\n\nPeople have always sailed on it."
KEYS = {
    "prompt": ("1",),
    "tokens": ("2", "right", "right", "tab"),
    "attention": ("3", "left", "enter", "left", "tab", "up", "up"),
    "layers": ("4", "left"),
    "step": ("5", "space", "space", "right", "plus", "plus", "down"),
}

Compare = Callable[..., bool]


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No blinking and no measured speed."""
    monkeypatch.setattr(Prompt.cursor_blink, "_default", False)
    monkeypatch.setattr(GrowingReply, "tokens_per_second", property(lambda reply: 20.0))
    monkeypatch.setattr(Finished, "tokens_per_second", property(lambda finished: 20.0))


@pytest.fixture
def take(snap_compare: Compare, store: Store) -> Callable[..., bool]:
    """Opens the inspector on a chat of one turn, presses keys, and compares the picture."""

    def taken(size: str, keys: tuple[str, ...], theme: str = "chatapp") -> bool:
        settings = Settings(theme=theme, sampling=Sampling(seed=1))
        app = ChatApp(settings, load=lambda: GlassModel([REPLY]), store=store)

        async def play(pilot: Pilot[int]) -> None:
            driver = Driver(app, pilot)
            await driver.ready()
            await driver.say("Tell me about the sea.")
            await driver.press("f3")
            await rest(driver)
            for key in keys:
                await driver.press(key)
                await rest(driver)

        return snap_compare(app, terminal_size=SIZES[size], run_before=play)

    return taken


@pytest.mark.parametrize("size", ["60x20", "100x30", "200x60"])
@pytest.mark.parametrize("tab", KEYS)
def test_tabs(take: Callable[..., bool], tab: str, size: str) -> None:
    assert take(size, KEYS[tab])


@pytest.mark.parametrize("tab", ["tokens", "attention"])
def test_three_columns(take: Callable[..., bool], tab: str) -> None:
    assert take("130x40", KEYS[tab])


@pytest.mark.parametrize("tab", ["tokens", "attention", "step"])
@pytest.mark.parametrize("colours", ["few", "none"])
def test_plain_terminals(
    take: Callable[..., bool], monkeypatch: pytest.MonkeyPatch, tab: str, colours: str
) -> None:
    monkeypatch.delenv("COLORTERM")
    monkeypatch.setenv("TERM", "xterm")
    if colours == "none":
        monkeypatch.setenv("NO_COLOR", "1")
    assert take("60x20", KEYS[tab])
