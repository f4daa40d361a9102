"""Bringing a model of the catalogue in the list of models."""

import threading
import time

import pytest
from fakes import ScriptedModel
from textual.widgets import ProgressBar

from chatapp.engine.errors import ModelError
from chatapp.engine.models import catalogue, fetching, loading
from chatapp.engine.models.known_models import known_models
from chatapp.tui.app import ChatApp
from chatapp.tui.screens.compare import CompareScreen
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
    monkeypatch.setattr(catalogue, "is_here", lambda name: False)
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


OFFER = "Ctrl+R downloads smollm2, 269.1 MB"


def bundled():
    return ScriptedModel(["Hi."], name="bundled")


@pytest.mark.parametrize("size", [(60, 20), (100, 30)])
async def test_an_empty_chat_offers_the_larger_model_by_a_key(open_app, hub, loaded, size):
    async with open_app(bundled(), size=size) as driver:
        await driver.until(lambda: OFFER in " ".join(driver.screen_text.split()))
        await driver.opens(ModelScreen, "ctrl+r")
        await driver.shows("50%")
        hub.go_on.set()
        await driver.until(lambda: driver.status.model == "smollm2")
        await driver.until(lambda: driver.status.state == "ready")
        assert (hub.asked, loaded) == (["smollm2"], ["smollm2"])
        assert OFFER not in driver.screen_text
        await driver.say("Hello")
        assert driver.texts == ["Hello", "Yes."]
        await driver.press("ctrl+r")
        assert hub.asked == ["smollm2"]


async def test_without_a_network_the_offer_says_so_and_the_chat_goes_on(open_app, hub, loaded):
    hub.problem = "smollm2: the hub cannot be reached"
    async with open_app(bundled(), size=(100, 30)) as driver:
        await driver.shows(OFFER)
        await driver.shows(hub.problem, "ctrl+r")
        await driver.press("escape")
        await driver.say("Hello")
        assert (driver.texts, driver.status.model, loaded) == (["Hello", "Hi."], "bundled", [])
        await driver.press("ctrl+r")  # a message has been sent, so nothing is offered
        assert hub.asked == ["smollm2"]


async def test_the_offered_download_is_stopped(open_app, hub, loaded):
    async with open_app(bundled(), size=(100, 30)) as driver:
        await driver.shows(OFFER)
        await driver.shows("50%", "ctrl+r")
        await driver.shows("Stopped. The next download continues", "escape")
        await driver.press("escape")
        assert (driver.status.model, loaded) == ("bundled", [])


@pytest.mark.parametrize("where", ["here", "browser"])
async def test_what_is_here_or_would_be_a_strangers_is_not_offered(
    open_app, hub, monkeypatch, where
):
    asked = threading.Event()
    monkeypatch.setattr(catalogue, "is_here", lambda name: asked.set() or where == "here")
    monkeypatch.setattr(ChatApp, "is_web", where == "browser")
    async with open_app(bundled(), size=(100, 30)) as driver:
        await driver.until(asked.is_set)
        await driver.idle()
        assert "F8 lists larger ones." in driver.screen_text
        await driver.press("ctrl+r")
        assert not isinstance(driver.app.screen, ModelScreen)
    assert hub.asked == []


@pytest.mark.parametrize("is_here", [False, True])
async def test_a_comparison_is_ready_only_with_what_is_here(open_app, monkeypatch, is_here):
    monkeypatch.setattr(catalogue, "is_here", lambda name: is_here)
    async with open_app(bundled(), size=(100, 30)) as driver:
        await driver.until(lambda: driver.chat.widgets.welcome.larger_is_here is is_here)
        await driver.opens(CompareScreen, "f4")
        assert "Compare temperature 0 and 1" in driver.screen_text
        assert ("Compare bundled and smollm2" in driver.screen_text) is is_here
