"""Pictures of the list of models, compared with those that somebody has looked at."""

from collections.abc import Callable

import pytest
from conftest import Driver
from fakes import ScriptedModel
from textual.pilot import Pilot
from textual.widgets import Input

from chatapp.dialogue.store import Store
from chatapp.engine import catalogue
from chatapp.engine.catalogue import Found
from chatapp.settings import Settings
from chatapp.tui.app import ChatApp
from chatapp.tui.models import ModelScreen
from chatapp.tui.prompt import Prompt

SIZES = {"60x20": (60, 20), "100x30": (100, 30), "200x60": (200, 60)}
HERE = [
    Found("bundled", "bundled · 3,652,608 parameters · 1,024 tokens · chat"),
    Found("runs/instructions", "folder · 3,652,608 parameters · 1,024 tokens · alpaca"),
    Found("runs/[b]pirate[/b]", "adapter · 3,660,000 parameters · 1,024 tokens · chat"),
    Found("org/gpt-large", "hub"),
]
SERVED = [
    Found("cluster#gpt2-xl", "server · https://gpu7.example/v1 · 1,024 tokens"),
    Found("laptop", "http://localhost:8080/v1: the server cannot be reached"),
]


@pytest.mark.parametrize("size", SIZES)
def test_models(
    snap_compare: Callable[..., bool], store: Store, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    for widget in (Input, Prompt):
        monkeypatch.setattr(widget.cursor_blink, "_default", False)
    monkeypatch.setattr(catalogue, "on_this_machine", lambda: [*HERE])
    monkeypatch.setattr(catalogue, "on_servers", lambda: SERVED)
    model = ScriptedModel(["Hello."], name="runs/instructions")
    app = ChatApp(Settings(theme="chatapp"), load=lambda: model, store=store)

    async def play(pilot: Pilot[int]) -> None:
        driver = Driver(app, pilot)
        await driver.ready()
        await driver.press("f8")
        await driver.until(lambda: isinstance(app.screen, ModelScreen))
        await driver.until(lambda: "cluster#gpt2-xl" in driver.screen_text)
        await driver.press("down", *"tok")
        await driver.until(lambda: "Load tok" in driver.screen_text)

    assert snap_compare(app, terminal_size=SIZES[size], run_before=play)
