"""Pictures of the screens of the lab, compared with those that somebody has looked at.

`pytest tests/tui/test_lab_snapshots.py --snapshot-update` takes them anew.
"""

import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest
from fakes import ScriptedModel
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.widgets import Input, TextArea
from tui_driver import Driver

from chatapp.common.paths import presets_path
from chatapp.common.presets import save_preset
from chatapp.common.settings import Settings
from chatapp.dialogue.store import Store
from chatapp.engine.events import Finished
from chatapp.engine.model import Sampling
from chatapp.tui.app import ChatApp
from chatapp.tui.conversation.turn import GrowingReply
from chatapp.tui.screens.compare import CompareScreen
from chatapp.tui.widgets.dialog import Field
from chatapp.tui.widgets.markdown import RenderedBody

SIZES = {"60x20": (60, 20), "100x30": (100, 30), "200x60": (200, 60)}
REPLY = (
    "The sea is a large body of salt water that covers most of the planet. It moves in waves "
    "and tides, and it is home to countless living things.\n\nPeople have always sailed on it."
)
OTHER = "It is [b]wide[/b], and deep. " * 12

Scene = Callable[[Driver], Awaitable[None]]
Take = Callable[[str, ScriptedModel, Scene], bool]


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No blinking, no measured speed."""
    monkeypatch.setattr(GrowingReply, "tokens_per_second", property(lambda reply: 20.0))
    monkeypatch.setattr(Finished, "tokens_per_second", property(lambda finished: 20.0))
    for widget in (Input, TextArea):
        monkeypatch.setattr(widget.cursor_blink, "_default", False)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def take(snap_compare: Callable[..., bool], store: Store) -> Take:
    """Plays a scene in an app of some size, and compares its picture."""

    def taken(size: str, model: ScriptedModel, scene: Scene) -> bool:
        app = ChatApp(Settings(theme="chatapp"), load=lambda: model, store=store)

        async def play(pilot: Pilot[int]) -> None:
            driver = Driver(app, pilot)
            await driver.ready()
            await scene(driver)
            await driver.listed()

        return snap_compare(app, terminal_size=SIZES[size], run_before=play)

    return taken


async def compare(driver: Driver) -> CompareScreen:
    await driver.press(*"What is the sea?", "f4")
    await driver.until(
        lambda: isinstance(driver.app.screen, CompareScreen) and driver.app.screen.focused
    )
    await driver.press("tab", "tab", *"temperature=0 seed=5")
    screen = driver.app.screen
    assert isinstance(screen, CompareScreen)
    return screen


@pytest.mark.parametrize("size", SIZES)
def test_asking_two(take: Take, size: str) -> None:
    async def scene(driver: Driver) -> None:
        await compare(driver)

    assert take(size, ScriptedModel([REPLY]), scene)


@pytest.mark.parametrize("size", SIZES)
def test_answering_both(take: Take, gate: threading.Event, size: str) -> None:
    class Pausing(ScriptedModel):
        said = 0

        def _wait(self, cancel: threading.Event | None) -> bool:
            self.said += 1
            if self.said > 40:
                self.gate = gate
            return super()._wait(cancel)

    async def scene(driver: Driver) -> None:
        screen = await compare(driver)
        await driver.press("enter")
        await driver.until(
            lambda: (
                (turn := driver.chat.conversation.turn)
                and [reply.tokens for reply in turn.replies] == [20, 20]
            )
        )
        screen.turns.flush()
        await driver.until(lambda: "moves" in driver.screen_text and "deep" in driver.screen_text)

    assert take(size, Pausing([REPLY, OTHER]), scene)


@pytest.mark.parametrize("size", SIZES)
def test_choosing(take: Take, size: str) -> None:
    async def scene(driver: Driver) -> None:
        screen = await compare(driver)
        await driver.press("enter")
        await driver.until(lambda: screen.check_action("choose", ()))

    assert take(size, ScriptedModel([REPLY, OTHER]), scene)


@pytest.mark.parametrize("size", SIZES)
def test_presets(take: Take, size: str) -> None:
    async def scene(driver: Driver) -> None:
        save_preset(presets_path(), "[b]wild[/b]", Sampling(temperature=1.5))
        save_preset(presets_path(), "exact", Sampling(temperature=0.0))
        await driver.press("f2")
        field = driver.app.screen.query_one("#preset", Field)
        field.focus()
        await driver.press(*"exact", "ctrl+l")
        await driver.until(lambda: "These are the values of 'exact'" in driver.screen_text)

    assert take(size, ScriptedModel([REPLY]), scene)


@pytest.mark.parametrize("size", SIZES)
def test_markdown(take: Take, size: str) -> None:
    async def scene(driver: Driver) -> None:
        driver.prompt.text = "/markdown on"
        await driver.press("enter")
        await driver.say("What is the sea?")
        await driver.until(
            lambda: any(body.display for body in driver.transcript.query(RenderedBody))
        )

    reply = (
        "# The sea\n\nIt is *salt* and **wide** ([b]not markup[/b]), see [a map](http://a.b):\n\n"
        "1. waves\n2. tides\n\n| ocean | depth |\n|---|---|\n| Pacific | 4,000 m |\n\n"
        "```python\nprint('sea')\n```\n\n> People have `always` sailed."
    )
    assert take(size, ScriptedModel([reply]), scene)


@pytest.mark.parametrize("size", SIZES)
def test_palette(take: Take, size: str) -> None:
    async def scene(driver: Driver) -> None:
        await driver.press("ctrl+p")
        await driver.until(lambda: isinstance(driver.app.screen, CommandPalette))
        await driver.press(*"reply")
        lines = ("Stop the reply", "Set the chat's instructions")
        palette = driver.app.screen
        await driver.until(
            lambda: (
                all(each in driver.screen_text for each in lines)
                and all(each.is_finished for each in driver.app.workers if each.node is palette)
            )
        )

    assert take(size, ScriptedModel([REPLY]), scene)
