"""Pictures of the screens, compared with those that somebody has looked at.

`pytest tests/tui/test_snapshots.py --snapshot-update` takes them anew.
"""

import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from fakes import ScriptedModel
from textual.pilot import Pilot
from textual.widgets import Input, TextArea
from thinking_model import thinking_model
from tui_driver import Driver

from chatapp.common.paths import tools_dir
from chatapp.common.settings import Settings
from chatapp.dialogue.store import Store
from chatapp.engine.events import Finished
from chatapp.tui.app import ChatApp
from chatapp.tui.conversation.turn import GrowingReply
from chatapp.tui.screens import history
from chatapp.tui.screens.ranking import RankScreen
from chatapp.tui.widgets.approval import Approval
from chatapp.tui.widgets.dialog import Field

SIZES = {"60x20": (60, 20), "100x30": (100, 30), "200x60": (200, 60)}
REPLY = (
    "The sea is a large body of salt water that covers most of the planet. It moves in waves "
    "and tides, and it is home to countless living things.\n\nPeople have always sailed on it."
)

Scene = Callable[[Driver], Awaitable[None]]
Compare = Callable[..., bool]


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No blinking, no clock, no measured speed, no animation."""
    for widget in (Input, TextArea):
        monkeypatch.setattr(widget.cursor_blink, "_default", False)
    monkeypatch.setattr(GrowingReply, "tokens_per_second", property(lambda reply: 20.0))
    monkeypatch.setattr(Finished, "tokens_per_second", property(lambda finished: 20.0))
    monkeypatch.setattr(history, "ago", lambda then, now: "3 days ago")


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def take(snap_compare: Compare, store: Store) -> Callable[..., bool]:
    """Plays a scene in an app of some size, and compares its picture."""

    def taken(size: str, model: ScriptedModel, scene: Scene, theme: str = "chatapp") -> bool:
        app = ChatApp(Settings(theme=theme), load=lambda: model, store=store)

        async def play(pilot: Pilot[int]) -> None:
            driver = Driver(app, pilot)
            await driver.ready()
            await scene(driver)
            await driver.listed()

        return snap_compare(app, terminal_size=SIZES[size], run_before=play)

    return taken


def pausing(gate: threading.Event) -> ScriptedModel:
    """A model whose second reply pauses after twenty tokens, until the gate opens."""

    class Pausing(ScriptedModel):
        said = 0

        def _wait(self, cancel: threading.Event | None) -> bool:
            self.said += len(self.prompts) == 2
            if self.said > 20:
                self.gate = gate
            return super()._wait(cancel)

    return Pausing([REPLY, REPLY])


@pytest.mark.parametrize("size", SIZES)
def test_empty(take: Callable[..., bool], size: str) -> None:
    async def scene(driver: Driver) -> None:
        await driver.until(lambda: driver.status.limit)

    assert take(size, ScriptedModel([REPLY]), scene)


async def stream(driver: Driver) -> None:
    """One finished turn, and one that pauses in the middle."""
    await driver.say("Tell me about the sea.")
    driver.prompt.text = "More, please."
    await driver.press("enter")
    await driver.until(lambda: driver.chat.conversation.turn.replies[0].tokens == 20)
    driver.chat.turns.flush()
    # One word, because where the line breaks depends on the size.
    await driver.until(lambda: "waves" in driver.screen_text.split("More, please.")[-1])


@pytest.mark.parametrize("size", SIZES)
def test_streaming(take: Callable[..., bool], gate: threading.Event, size: str) -> None:
    assert take(size, pausing(gate), stream)


@pytest.mark.parametrize("size", SIZES)
def test_stopped(take: Callable[..., bool], gate: threading.Event, size: str) -> None:
    async def scene(driver: Driver) -> None:
        await stream(driver)
        await driver.press("escape")
        await driver.idle()

    assert take(size, pausing(gate), scene)


@pytest.mark.parametrize("size", SIZES)
def test_thoughts(take: Callable[..., bool], tmp_path: Path, size: str) -> None:
    thought = "<think>\nThe user asks about the sea. I should say what it is.\n</think>\n\n"

    async def scene(driver: Driver) -> None:
        await driver.say("Tell me about the sea.")
        await driver.press("ctrl+up", "enter")
        await driver.press("escape")
        await driver.say("More, please.")

    assert take(size, thinking_model(tmp_path / "model", [thought + REPLY]), scene)


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Notes on the sea in the folder that the program runs in, with an index of its own."""
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "tides.md").write_text(
        "# The sea\n\n## Tides\n\nThe moon pulls the sea, and it rises twice a day.\n"
    )
    (tmp_path / "notes" / "boats.txt").write_text("A boat with a sail needs no coal at sea.")
    return tmp_path


async def ask_with_notes(driver: Driver) -> None:
    driver.prompt.text = "/docs notes"
    await driver.press("enter")
    await driver.until(lambda: any("2 files" in note for note in driver.notices))
    driver.app.clear_notifications()
    await driver.say("Why does the sea rise?")


@pytest.mark.parametrize("size", SIZES)
def test_sources(take: Callable[..., bool], in_folder: Path, size: str) -> None:
    assert take(size, ScriptedModel(["Because the moon pulls it."]), ask_with_notes)


@pytest.mark.parametrize("size", SIZES)
def test_reading_a_source(take: Callable[..., bool], in_folder: Path, size: str) -> None:
    async def scene(driver: Driver) -> None:
        await ask_with_notes(driver)
        await driver.press("ctrl+up", "enter")

    assert take(size, ScriptedModel(["Because the moon pulls it."]), scene)


WEATHER = """\
name = "weather"
description = "The weather in a city."
command = ["printf", "18 degrees, clear\\nwind from the west"]
[parameters.properties.city]
type = "string"
"""
CALLS = (
    "Let me see."
    '<tool_call>{"name": "calculator", "arguments": {"expression": "48*76"}}</tool_call>',
    '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>',
    "48 times 76 is 3648, and in Rome the sky is clear.",
)


@pytest.fixture
def calling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ScriptedModel:
    """A model that calls the calculator, and then a tool of the user's own."""
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    tools_dir().mkdir(parents=True)
    (tools_dir() / "weather.toml").write_text(WEATHER)
    return thinking_model(tmp_path / "model", CALLS)


async def ask_with_tools(driver: Driver) -> None:
    """Ask what is answered with two tools, up to the question whether one may run."""
    driver.prompt.text = "/tools calculator weather"
    await driver.press("enter")
    await driver.until(lambda: driver.notices)
    driver.app.clear_notifications()
    driver.prompt.text = "What is 48*76, and how is the weather in Rome?"
    await driver.press("enter")
    await driver.until(lambda: driver.chat.query_one(Approval).display)


@pytest.mark.parametrize("size", SIZES)
def test_a_tool_that_asks(take: Callable[..., bool], calling: ScriptedModel, size: str) -> None:
    assert take(size, calling, ask_with_tools)


@pytest.mark.parametrize("size", SIZES)
def test_calls_opened(take: Callable[..., bool], calling: ScriptedModel, size: str) -> None:
    async def scene(driver: Driver) -> None:
        await ask_with_tools(driver)
        await driver.press("down", "enter")
        await driver.idle()
        await driver.press("ctrl+up", "enter")

    assert take(size, calling, scene)


@pytest.mark.parametrize("size", SIZES)
def test_error(take: Callable[..., bool], size: str) -> None:
    async def scene(driver: Driver) -> None:
        await driver.say("Tell me about the sea.")
        await driver.say("And now?")

    assert take(size, ScriptedModel([REPLY, RuntimeError("out of memory")]), scene)


@pytest.mark.parametrize("size", SIZES)
def test_focused_message(take: Callable[..., bool], size: str) -> None:
    async def scene(driver: Driver) -> None:
        await driver.say("Tell me about the sea.")
        await driver.press("ctrl+up", "r")
        await driver.idle()
        await driver.press("ctrl+up")

    assert take(size, ScriptedModel([REPLY, "It is [b]wide[/b]."]), scene)


@pytest.mark.parametrize("size", SIZES)
def test_help(take: Callable[..., bool], size: str) -> None:
    async def scene(driver: Driver) -> None:
        await driver.press("f1")

    assert take(size, ScriptedModel([REPLY]), scene)


@pytest.mark.parametrize("size", SIZES)
def test_parameters(take: Callable[..., bool], size: str) -> None:
    async def scene(driver: Driver) -> None:
        await driver.press("f2")
        driver.app.screen.query_one("#temperature", Field).value = "hot"
        await driver.press("enter")

    assert take(size, ScriptedModel([REPLY]), scene)


@pytest.mark.parametrize("size", SIZES)
def test_history(take: Callable[..., bool], size: str) -> None:
    async def scene(driver: Driver) -> None:
        for text in ("Tell me about the sea.", "What does [/b] mean?", "Do you like tea?"):
            await driver.say(text)
            await driver.press("ctrl+n")
        await driver.press("ctrl+o", *"sea")
        # The list is as long before it is searched; only a search shows what was found.
        await driver.until(lambda: "The sea is a large" in driver.screen_text)
        await driver.press("down", "down", "a")
        await driver.until(lambda: "archived" in driver.screen_text)
        await driver.press("n")

    assert take(size, ScriptedModel([REPLY]), scene)


@pytest.mark.parametrize("size", SIZES)
def test_completions(take: Callable[..., bool], size: str) -> None:
    async def scene(driver: Driver) -> None:
        await driver.say("Tell me about the sea.")
        await driver.press(*"/")

    assert take(size, ScriptedModel([REPLY]), scene)


@pytest.mark.parametrize("size", SIZES)
def test_branches(take: Callable[..., bool], size: str) -> None:
    async def scene(driver: Driver) -> None:
        await driver.say("Tell me about the sea.")
        await driver.press("ctrl+up", "r")
        await driver.idle()
        await driver.say("Go on.")
        await driver.press("ctrl+up", "up", "up", "up", "e", "!", "enter")
        await driver.idle()
        await driver.press("ctrl+b")
        await driver.until(lambda: "You  ‹ 2/2 ›" in driver.screen_text)

    assert take(size, ScriptedModel([REPLY, "It is [b]wide[/b]."]), scene)


@pytest.mark.parametrize("size", SIZES)
def test_ranking(take: Callable[..., bool], size: str) -> None:
    async def scene(driver: Driver) -> None:
        await driver.say("Tell me about the sea.")
        await driver.press("ctrl+up", "plus", "r")
        await driver.idle()
        await driver.press("minus", "w", "!", "enter")
        await driver.press("ctrl+up", "k")
        await driver.until(lambda: isinstance(driver.app.screen, RankScreen))
        await driver.press("u", "d")

    assert take(size, ScriptedModel([REPLY, "It is [b]wide[/b]."]), scene)


@pytest.mark.parametrize("size", SIZES)
def test_correcting(take: Callable[..., bool], size: str) -> None:
    async def scene(driver: Driver) -> None:
        await driver.say("Tell me about the sea.")
        await driver.press("ctrl+up", "w", *" And deep.")

    assert take(size, ScriptedModel([REPLY]), scene)


@pytest.mark.parametrize("size", SIZES)
def test_archive(take: Callable[..., bool], size: str) -> None:
    async def scene(driver: Driver) -> None:
        await driver.say("Tell me about the sea.")
        await driver.press("ctrl+o")
        await driver.until(lambda: "2 messages" in driver.screen_text)
        await driver.press("ctrl+t")
        await driver.until(lambda: "The archive is empty." in driver.screen_text)

    assert take(size, ScriptedModel([REPLY]), scene)


@pytest.mark.parametrize("size", SIZES)
def test_refused(take: Callable[..., bool], size: str) -> None:
    async def scene(driver: Driver) -> None:
        driver.prompt.text = "/tempalte plain"
        await driver.press("enter")
        await driver.until(lambda: "did you mean /template?" in driver.screen_text)

    assert take(size, ScriptedModel([REPLY]), scene)


async def nothing(driver: Driver) -> None:
    await driver.until(lambda: driver.status.limit)


async def one_message(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.press("ctrl+up")


async def found(driver: Driver) -> None:
    await driver.say("Tell me about the sea.")
    await driver.press("ctrl+o", *"sea")
    await driver.until(lambda: "The sea is a large" in driver.screen_text)


async def parameters(driver: Driver) -> None:
    await driver.press("f2", "down")


async def told(driver: Driver) -> None:
    await driver.press("f1", "pagedown")


PLAIN = {
    "first run": nothing,
    "chat": one_message,
    "search": found,
    "parameters": parameters,
    "help": told,
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("colours", ["few colours", "no colour"])
def test_plain_terminals(
    take: Callable[..., bool], monkeypatch: pytest.MonkeyPatch, colours: str, name: str
) -> None:
    monkeypatch.delenv("COLORTERM")
    monkeypatch.setenv("TERM", "xterm")
    if colours == "no colour":
        monkeypatch.setenv("NO_COLOR", "1")
    assert take("60x20", ScriptedModel([REPLY]), PLAIN[name])
