"""The list of models, and a chat that goes on with a model on a server."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from completions_server import CompletionsServer, break_off, closed_port, piece, said
from fakes import ScriptedModel
from tiny import write_tiny_gpt2
from tui_driver import Driver, OpenApp
from typer.testing import CliRunner

from chatapp import cli
from chatapp.commands import options
from chatapp.common.settings import Settings
from chatapp.dialogue.store import Store
from chatapp.engine.models import loading, resolving
from chatapp.engine.models.resolving import note_model
from chatapp.tui.app import ChatApp
from chatapp.tui.screens.models import ModelScreen
from chatapp.tui.widgets.dialog import Field


@pytest.fixture
def server() -> Iterator[CompletionsServer]:
    with CompletionsServer().running() as server:
        server.models = [{"id": "tiny", "max_model_len": 512}, {"id": "[b]large[/b]"}]
        yield server


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: CompletionsServer) -> None:
    """A machine with two models, a server that is up and one that is down."""
    monkeypatch.chdir(tmp_path)
    write_tiny_gpt2(tmp_path / "runs" / "mine", context=256)
    monkeypatch.setattr(resolving, "local_models", lambda: ["runs/mine", "org/cached", "runs/gone"])
    config = tmp_path / "home" / "config"
    config.mkdir(parents=True)
    (config / "servers.toml").write_text(
        f'[up]\nurl = "{server.url}"\n[down]\nurl = "http://localhost:{closed_port()}"\n'
    )


def notices(driver: Driver) -> list[str]:
    return [notification.message for notification in driver.app._notifications]


async def open_list(driver: Driver) -> ModelScreen:
    await driver.press("f8")
    await driver.until(lambda: isinstance(driver.app.screen, ModelScreen))
    await driver.until(lambda: "Looking for models" not in driver.screen_text)
    screen = driver.app.screen
    assert isinstance(screen, ModelScreen)
    return screen


@pytest.mark.usefixtures("machine")
async def test_what_there_is(open_app: OpenApp, server: CompletionsServer) -> None:
    async with open_app() as driver:
        await open_list(driver)
        text = driver.screen_text
        for words in (
            "runs/mine",
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
        assert "runs/mine" not in driver.screen_text
        await driver.press("escape")
        assert driver.status.model == "scripted"


async def test_it_knows_what_models_list_and_completion_know(
    open_app: OpenApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resolving, "cached_hub_models", lambda wanted: [])
    monkeypatch.setattr(resolving, "files_of_other_programs", dict)
    write_tiny_gpt2(tmp_path / "elsewhere" / "used")
    (tmp_path / "elsewhere" / "used.gguf").touch()
    (tmp_path / "elsewhere" / "begun").mkdir()
    (tmp_path / "elsewhere" / "begun" / "run.json").write_text("{}")
    for name in ("used", "used.gguf", "begun"):
        note_model(tmp_path / "elsewhere" / name)
    names = ["bundled", "elsewhere/begun", "elsewhere/used.gguf", "elsewhere/used"]
    listed = json.loads(CliRunner().invoke(cli.app, ["models", "list", "--json"]).stdout)
    assert [model["name"] for model in listed] == names
    assert options.models("") == names
    async with open_app() as driver:
        await open_list(driver)
        assert "elsewhere/begun" in driver.screen_text
        assert "this run is not finished; continue it with `finetune resume" in driver.screen_text
        screen = driver.app.screen
        assert isinstance(screen, ModelScreen)
        assert [model.name for model in screen._models] == names


@pytest.mark.usefixtures("machine")
async def test_a_chat_goes_on_with_a_model_from_the_list(
    open_app: OpenApp, store: Store, server: CompletionsServer
) -> None:
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


async def test_what_is_typed_can_be_loaded(
    open_app: OpenApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []

    def load_model(name: str, **options: object) -> ScriptedModel:
        names.append(name)
        return ScriptedModel(["Two."], name=name)

    monkeypatch.setattr(loading, "load_model", load_model)
    monkeypatch.setattr(resolving, "local_models", lambda: ["here/a"])
    async with open_app() as driver:
        driver.prompt.text = "/model"
        await driver.press("enter")
        await driver.until(lambda: isinstance(driver.app.screen, ModelScreen))
        await driver.until(lambda: "here/a" in driver.screen_text)
        driver.app.screen.query_one(Field).value = "org/[b]new[/b]"
        await driver.until(lambda: "Load org/[b]new[/b]" in driver.screen_text)
        await driver.press("enter")
        await driver.until(lambda: driver.status.model == "org/[b]new[/b]")
        await driver.say("Hi")
        assert names == ["org/[b]new[/b]"]


async def test_names_of_servers_are_completed(
    open_app: OpenApp, server: CompletionsServer, machine: None
) -> None:
    async with open_app() as driver:
        await driver.press(*"/model up")
        await driver.until(lambda: "/model up#tiny" in driver.screen_text)


async def test_a_running_reply_is_not_disturbed(open_app: OpenApp) -> None:
    model = ScriptedModel(["One."])
    model.gate = threading.Event()
    async with open_app(model) as driver:
        driver.prompt.text = "First"
        await driver.press("enter")
        await driver.until(lambda: driver.texts)
        await driver.press("f8")
        assert "A reply is being written. Esc stops it." in notices(driver)
        assert not isinstance(driver.app.screen, ModelScreen)
        model.gate.set()
        await driver.idle()


# A server in the chat


async def test_stopping_a_reply_of_a_server(open_app: OpenApp, server: CompletionsServer) -> None:
    server.stream = [piece(" Well"), piece(" then"), server.hang]
    async with open_app(load=lambda: loading.load_model(f"{server.url}#tiny")) as driver:
        await driver.ready()
        driver.prompt.text = "Hi"
        await driver.press("enter")
        await driver.until(lambda: "Well then" in driver.screen_text)
        await driver.press("escape")
        await driver.idle()
        assert server.gone.wait(120)
        assert driver.texts == ["Hi", "Well then"]
        assert driver.status.state == "stopped"


async def test_a_server_that_breaks_off(open_app: OpenApp, server: CompletionsServer) -> None:
    server.stream = [piece(" Well"), break_off]
    async with open_app(load=lambda: loading.load_model(f"{server.url}#tiny")) as driver:
        await driver.ready()
        await driver.say("Hi")
        assert driver.texts == ["Hi", "Well"]
        assert "The model failed" in driver.problem
        assert "broke off the connection" in driver.problem


async def test_remarks_are_shown(open_app: OpenApp, server: CompletionsServer) -> None:
    async with open_app(load=lambda: loading.load_model(f"{server.url}#[b]large[/b]")) as driver:
        await driver.ready()
        await driver.until(lambda: "context window" in "".join(notices(driver)))
        server.stream = said(" Yes.")
        driver.prompt.text = "/set top_k 5"
        await driver.press("enter")
        await driver.say("Hi")
        assert "follows top_k" in driver.screen_text


async def test_a_server_that_is_down(store: Store) -> None:
    settings = Settings(model=f"http://localhost:{closed_port()}")
    app = ChatApp(settings, store=store)
    async with app.run_test() as pilot:
        driver = Driver(app, pilot)
        await driver.until(lambda: "the server cannot be reached" in driver.problem)
