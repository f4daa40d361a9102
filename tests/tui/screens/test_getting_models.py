"""Bringing a model of the catalogue in the list of models."""

import threading
import time

import pytest
from fakes import ScriptedModel
from textual.widgets import ProgressBar

from chatapp.engine.errors import ModelError
from chatapp.engine.models import catalogue, fetching, loading
from chatapp.engine.models.known_models import known_models
from chatapp.tui.screens.models import ModelScreen


class Hub:
    """Stands in for `fetch`: brings half a model at once, and the rest when it is let go."""

    def __init__(self):
        self.asked = []
        self.go_on = threading.Event()
        self.ended = threading.Event()
        self.problem = ""

    def fetch(self, name, *, say, progress):
        self.asked.append(name)
        try:
            if self.problem:
                raise ModelError(self.problem)
            say(f"downloading {name} \x1b[31mfrom the hub")
            while not self.go_on.is_set():
                progress(50, 100)
                time.sleep(0.005)
        finally:
            self.ended.set()


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    hub = Hub()
    monkeypatch.setattr(fetching, "fetch", hub.fetch)
    monkeypatch.setattr(catalogue, "on_this_machine", lambda *_: [])
    monkeypatch.setattr(catalogue, "to_get", lambda: [*known_models().values()])
    return hub


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    """The names of the models that are loaded."""
    names = []

    def load_model(name, **options):
        names.append(name)
        return ScriptedModel(["Yes."], name=name)

    monkeypatch.setattr(loading, "load_model", load_model)
    return names


async def choose(driver, name):
    """Open the list and choose a model that is not here."""
    await driver.opens(ModelScreen, "f8")
    await driver.shows("To download")
    await driver.press(*name, "enter")
    await driver.until(lambda: f"{name} is not downloaded yet" in driver.screen_text)
    screen = driver.app.screen
    assert isinstance(screen, ModelScreen)
    return screen


@pytest.mark.parametrize("size", [(60, 20), (100, 30)])
async def test_a_model_is_brought_and_gone_on_with(open_app, hub, loaded, size):
    async with open_app(size=size) as driver:
        screen = await choose(driver, "smollm2-360m")
        assert "723.7 MB, licence" in driver.screen_text
        assert "Apache-2.0." in driver.screen_text
        assert hub.asked == []
        await driver.shows("smollm2-360m ␛[31mfrom the hub", "enter")
        await driver.shows("50%")
        assert screen.query_one(ProgressBar).progress == 50
        assert "━" in driver.screen_text
        await driver.press("enter", "down")  # nothing else is chosen meanwhile
        assert hub.asked == ["smollm2-360m"]
        hub.go_on.set()
        await driver.until(lambda: driver.status.model == "smollm2-360m")
        await driver.until(lambda: driver.status.state == "ready")
        assert loaded == ["smollm2-360m"]


async def test_it_is_stopped(open_app, hub, loaded):
    async with open_app() as driver:
        screen = await choose(driver, "gpt2-large")
        await driver.shows("50%", "enter")
        await driver.shows("Stopped. The next download continues", "escape")
        assert hub.ended.is_set()
        assert not screen.query_one(ProgressBar).display
        await driver.shows("gpt2-large is not downloaded yet", "enter")
        await driver.press("escape")
        assert "is not downloaded yet" not in driver.screen_text
        assert driver.app.screen is screen
        await driver.press("escape")
        assert driver.app.screen is not screen
        assert (driver.status.model, loaded) == ("scripted", [])


async def test_why_it_cannot_be_had(open_app, hub):
    hub.problem = "gpt2: the disk is [b]full[/b]"
    async with open_app() as driver:
        await choose(driver, "gpt2")
        await driver.shows(hub.problem, "enter")
        hub.problem = ""
        hub.go_on.set()
        await driver.press("enter", "enter")
        await driver.until(lambda: driver.status.model == "gpt2")


async def test_another_one_is_asked_for_anew(open_app, hub):
    async with open_app() as driver:
        await choose(driver, "gpt2")
        await driver.shows("gpt2-medium is not downloaded yet", "down", "enter")
        assert hub.asked == []


async def test_leaving_the_program_stops_it(open_app, hub):
    async with open_app() as driver:
        await choose(driver, "gpt2")
        await driver.shows("50%", "enter")
    assert hub.ended.is_set()
