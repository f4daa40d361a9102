"""Pictures of the picker of prompts, and of the examples in the inspector."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from glass import GlassModel
from test_inspector import rest
from test_library_screen import choose, own, picker, type_in
from textual.pilot import Pilot
from textual.widgets import Input
from tui_driver import Driver

from chatapp.common.settings import Settings
from chatapp.dialogue.store import Store
from chatapp.engine.events import Finished
from chatapp.engine.model import Sampling
from chatapp.tui.app import ChatApp
from chatapp.tui.conversation.turn import GrowingReply
from chatapp.tui.widgets.prompt import Prompt

SIZES = {"60x20": (60, 20), "100x30": (100, 30), "200x60": (200, 60)}

Scene = Callable[[Driver], Awaitable[None]]

__all__ = ["own"]  # a fixture


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No blinking and no measured speed."""
    for widget in (Input, Prompt):
        monkeypatch.setattr(widget.cursor_blink, "_default", False)
    monkeypatch.setattr(GrowingReply, "tokens_per_second", property(lambda reply: 20.0))
    monkeypatch.setattr(Finished, "tokens_per_second", property(lambda finished: 20.0))


@pytest.fixture
def take(snap_compare: Callable[..., bool], store: Store, own: Path) -> Callable[..., bool]:
    """Plays a scene in an app of some size, and compares its picture."""
    (own / "broken.toml").write_text('instruktion = "x"\n')

    def taken(size: str, scene: Scene) -> bool:
        settings = Settings(theme="chatapp", sampling=Sampling(seed=1))
        app = ChatApp(settings, load=lambda: GlassModel([" It feels nice."]), store=store)

        async def play(pilot: Pilot[int]) -> None:
            driver = Driver(app, pilot)
            await driver.ready()
            await scene(driver)
            await rest(driver)

        return snap_compare(app, terminal_size=SIZES[size], run_before=play)

    return taken


async def persona(driver: Driver) -> None:
    await picker(driver)
    await driver.press("down")


async def task(driver: Driver) -> None:
    driver.prompt.text = "red ice"
    await picker(driver)
    await type_in(driver, "feel")


async def inspected(driver: Driver) -> None:
    await choose(driver, "feel")
    driver.app.clear_notifications()  # which would go when their time is over
    await driver.say("red ice")
    await driver.press("f3")
    await rest(driver)
    await driver.press("1")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scene", [persona, task, inspected])
def test_library(take: Callable[..., bool], scene: Scene, size: str) -> None:
    assert take(size, scene)


@pytest.mark.parametrize("colours", ["few", "none"])
def test_library_on_plain_terminals(
    take: Callable[..., bool], monkeypatch: pytest.MonkeyPatch, colours: str
) -> None:
    monkeypatch.delenv("COLORTERM")
    monkeypatch.setenv("TERM", "xterm")
    if colours == "none":
        monkeypatch.setenv("NO_COLOR", "1")
    assert take("60x20", task)
