"""Models that are asked for one after the other, and answer in whatever order they like."""

import threading

from fakes import ScriptedModel

from chatapp.engine.models import loading


class Loader:
    """In place of `load_model`: each model comes, or fails, when the test lets it."""

    def __init__(self, models):
        self._models = models
        self._gates = {name: threading.Event() for name in models}
        self._threads = {}
        self.precisions = {}

    def __call__(self, name, *, precision, **options):
        self._threads[name] = threading.current_thread()
        self.precisions[name] = precision
        self._gates[name].wait(120)
        model = self._models[name]
        if isinstance(model, Exception):
            raise model
        return model

    def let(self, name):
        """Let a model's load come to its end."""
        self._gates[name].set()

    def has_told(self, name):
        """Whether the screen has been told of the model."""
        return not self._threads[name].is_alive()


async def command(driver, text):
    await driver.order(text)


def named(name, *replies):
    return ScriptedModel(replies, name=name)


async def test_of_two_models_the_one_asked_for_last_stays(open_app, store, monkeypatch):
    big, small = named("big", "From big."), named("small", "From small.")
    loader = Loader({"big": big, "small": small})
    monkeypatch.setattr(loading, "load_model", loader)
    async with open_app() as driver:
        await command(driver, "/model big")
        await command(driver, "/model small")
        loader.let("small")
        await driver.until(lambda: driver.status.state == "ready")
        loader.let("big")
        await driver.until(lambda: loader.has_told("big"))
        assert driver.status.model == "small"
        await driver.say("Hello")
        assert driver.texts == ["Hello", "From small."]
        assert [row.model for row in store.generations(1)] == ["small"]
        assert big.prompts == []


async def test_the_precision_is_that_of_the_model_there_is(open_app, monkeypatch):
    loader = Loader({"scripted": named("scripted"), "small": named("small")})
    monkeypatch.setattr(loading, "load_model", loader)
    async with open_app() as driver:
        conversation = driver.chat.conversation
        before = conversation.precision
        await driver.press("f2")
        driver.app.screen.query_one("#precision").value = "int8"
        await driver.press("enter")
        await driver.until(lambda: "scripted" in loader.precisions)
        await command(driver, "/model small")
        loader.let("small")
        await driver.until(lambda: driver.status.state == "ready")
        loader.let("scripted")
        await driver.until(lambda: loader.has_told("scripted"))
        assert loader.precisions == {"scripted": "int8", "small": before}
        assert (driver.status.model, conversation.precision) == ("small", before)


async def test_a_late_model_does_not_send_the_message_again(open_app, store, monkeypatch):
    small = named("small", "From small.")
    small.gate = threading.Event()
    loader = Loader({"big": named("big", "From big."), "small": small})
    monkeypatch.setattr(loading, "load_model", loader)
    async with open_app() as driver:
        await command(driver, "/model big")
        await command(driver, "/model small")
        await command(driver, "Hello")
        loader.let("small")
        await driver.until(lambda: driver.texts)
        loader.let("big")
        await driver.until(lambda: loader.has_told("big"))
        small.gate.set()
        await driver.idle()
        assert driver.texts == ["Hello", "From small."]
        assert [message.text for message in store.tree(1)] == ["Hello", "From small."]


async def test_a_late_failure_changes_nothing(open_app, monkeypatch):
    loader = Loader({"gone": RuntimeError("there is no such folder"), "small": named("small", "I")})
    monkeypatch.setattr(loading, "load_model", loader)
    async with open_app() as driver:
        await command(driver, "/model gone")
        await command(driver, "/model small")
        await command(driver, "Hello")
        loader.let("gone")
        await driver.until(lambda: loader.has_told("gone"))
        assert driver.status.state == "loading"
        assert driver.problem == ""
        loader.let("small")
        await driver.until(lambda: driver.texts == ["Hello", "I"])
        await driver.idle()
        assert driver.problem == ""
