"""The list of models, and a chat that goes on with a model on a server."""

import pytest
from completions_server import CompletionsServer, closed_port, said
from fakes import ScriptedModel
from tiny import write_tiny_gpt2

from chatapp.engine.models import loading, resolving
from chatapp.tui.screens.models import ModelScreen
from chatapp.tui.widgets.dialog import Field


@pytest.fixture
def server():
    with CompletionsServer().running() as server:
        server.models = [{"id": "tiny", "max_model_len": 512}, {"id": "[b]large[/b]"}]
        yield server


@pytest.fixture
def machine(tmp_path, monkeypatch, server):
    """A machine with two models, a server that is up and one that is down."""
    monkeypatch.chdir(tmp_path)
    write_tiny_gpt2(tmp_path / "runs" / "mine", context=256)
    monkeypatch.setattr(resolving, "local_models", lambda: ["runs/mine", "org/cached", "runs/gone"])
    config = tmp_path / "home" / "config"
    config.mkdir(parents=True)
    (config / "servers.toml").write_text(
        f'[up]\nurl = "{server.url}"\n[down]\nurl = "http://localhost:{closed_port()}"\n'
    )


def notices(driver):
    return [notification.message for notification in driver.app._notifications]


async def open_list(driver):
    await driver.opens(ModelScreen, "f8")
    await driver.until(lambda: "Looking for models" not in driver.screen_text)
    screen = driver.app.screen
    assert isinstance(screen, ModelScreen)
    return screen


@pytest.mark.usefixtures("machine")
async def test_what_there_is(open_app, server):
    async with open_app() as driver:
        await open_list(driver)
        text = driver.screen_text
        for words in (
            "mine  in runs",
            "folder · ",
            " MB in memory · plain · 256 tokens",
            "org/cached",
            "is not on this machine",
            "up#tiny",
            f"server · {server.url} · 512 tokens",
            "up#[b]large[/b]",
            "the server cannot be reached",
        ):
            assert words in text
        await driver.press(*"512 tok")
        assert "up#tiny" in driver.screen_text
        assert "in runs" not in driver.screen_text
        await driver.press("escape")
        assert driver.status.model == "scripted"


@pytest.mark.usefixtures("machine")
async def test_a_chat_goes_on_with_a_model_from_the_list(open_app, store, server):
    server.stream = said(" I", " do.")
    async with open_app(ScriptedModel(["Hello."])) as driver:
        await driver.say("Hi")
        await open_list(driver)
        await driver.press("down", "down", "down", "enter")
        await driver.until(lambda: driver.status.model == "up#tiny")
        await driver.until(lambda: driver.status.state == "ready")
        await driver.say("Do you?")
        assert driver.texts == ["Hi", "Hello.", "Do you?", "I do."]
        assert server.requests[0]["prompt"].endswith(
            "User: Hi\nAssistant: Hello.\nUser: Do you?\nAssistant:"
        )
        assert "≈" in driver.screen_text
        assert [turn.model for turn in store.generations(1)] == ["scripted", "up#tiny"]
        screen = await open_list(driver)
        assert "● up#tiny" in driver.screen_text
        assert screen._rows[screen._list.highlighted or 0].name == "up#tiny"


async def test_what_is_typed_can_be_loaded(open_app, monkeypatch):
    names = []

    def load_model(name, **options):
        names.append(name)
        return ScriptedModel(["Two."], name=name)

    monkeypatch.setattr(loading, "load_model", load_model)
    monkeypatch.setattr(resolving, "local_models", lambda: ["here/a"])
    async with open_app() as driver:
        await driver.order("/model")
        await driver.until(lambda: isinstance(driver.app.screen, ModelScreen))
        await driver.shows("here/a")
        driver.app.screen.query_one(Field).value = "org/[b]new[/b]"
        await driver.shows("Load org/[b]new[/b]")
        await driver.press("enter")
        await driver.until(lambda: driver.status.model == "org/[b]new[/b]")
        await driver.say("Hi")
        assert names == ["org/[b]new[/b]"]


async def test_names_of_servers_are_completed(open_app, server, machine):
    async with open_app() as driver:
        await driver.shows("/model up#tiny", *"/model up")
