"""F2: presets by name, template and precision of the running chat."""

import threading

import pytest
from fakes import ScriptedModel
from textual.events import Key
from textual.widgets import Static

from chatapp.common.paths import presets_path
from chatapp.common.settings import read_presets, save_preset
from chatapp.engine.model import Sampling
from chatapp.engine.models import loading
from chatapp.tui.screens.parameters import ParametersScreen
from chatapp.tui.widgets.dialog import Field

FOREIGN = "[b]x[/b]"


def field(driver, name):
    return driver.app.screen.query_one(f"#{name}", Field)


def problem(driver):
    return str(driver.app.screen.query_one("#field-problem", Static).content)


async def open_parameters(driver, **values):
    await driver.opens(ParametersScreen, "f2")
    for name, value in values.items():
        field(driver, name).value = value


async def test_keys_typed_fast_go_to_the_field_that_has_the_focus_by_then(open_app):
    async with open_app() as driver:
        await open_parameters(driver)
        names = [field.id for field in driver.app.screen.query(Field)]
        field(driver, names[1]).value = ""
        for key in ("home", "down", "5", "up", "7"):  # all before any of them is handled
            driver.app.post_message(Key(key, key if key.isdigit() else None))
        await driver.settle()
        assert field(driver, names[1]).value == "5"
        assert field(driver, names[0]).value.startswith("7")


async def test_presets_are_kept_loaded_and_removed(open_app):
    async with open_app() as driver:
        await open_parameters(driver, temperature="0.25", seed="5", preset=FOREIGN)
        await driver.press("ctrl+s")
        assert problem(driver) == f"These values are saved as {FOREIGN!r}."
        assert read_presets(presets_path()) == {FOREIGN: Sampling(temperature=0.25, seed=5)}
        await driver.press("escape")
        assert driver.chat.conversation.choices.sampling == Sampling()  # kept, but not used
        await open_parameters(driver, preset=FOREIGN)
        await driver.press("ctrl+l")
        assert field(driver, "temperature").value == "0.25"
        await driver.back("enter")
        assert driver.chat.conversation.choices.sampling == Sampling(temperature=0.25, seed=5)
        await open_parameters(driver, preset=FOREIGN)
        await driver.press("ctrl+r")
        assert read_presets(presets_path()) == {}
        await driver.press("ctrl+l")
        assert "there is no preset '[b]x[/b]'; there are none yet" in problem(driver)


async def test_names_are_completed_with_the_right_arrow(open_app):
    save_preset(presets_path(), "exact", Sampling(temperature=0.0))
    async with open_app() as driver:
        await open_parameters(driver, template="", precision="")
        for name, typed, whole in (
            ("preset", "ex", "exact"),
            ("template", "alp", "alpaca"),
            ("precision", "in", "int8"),
        ):
            field(driver, name).focus()
            await driver.press(*typed)
            await driver.until(
                lambda name=name, whole=whole: field(driver, name)._suggestion == whole
            )
            await driver.press("right")
            assert field(driver, name).value == whole


async def test_a_value_that_cannot_be_is_not_kept(open_app):
    async with open_app() as driver:
        await open_parameters(driver, temperature="hot", preset="a")
        await driver.press("ctrl+s")
        assert "temperature is 'hot'" in problem(driver)
        field(driver, "temperature").value = "1"
        field(driver, "preset").value = " "
        await driver.press("ctrl+s")
        assert "needs a name" in problem(driver)
        assert driver.app.focused is field(driver, "preset")
        assert not presets_path().exists()


async def test_another_template_and_precision(open_app, monkeypatch):
    loaded = []

    def load_model(name, *, precision, device, **options):
        loaded.append(precision)
        if precision == "bfloat16":
            raise ValueError("cannot be loaded in bfloat16")
        return ScriptedModel(["Two."])

    monkeypatch.setattr(loading, "load_model", load_model)
    model = ScriptedModel(["One."])
    async with open_app(model) as driver:
        await driver.say("First")
        await open_parameters(driver, template="alpaca", precision="int8")
        await driver.back("enter")
        await driver.ready()
        await driver.until(lambda: driver.status.template == "alpaca")
        assert driver.chat.conversation.precision == "int8"
        await driver.say("Second")
        assert driver.texts == ["First", "One.", "Second", "Two."]
        await open_parameters(driver, precision="bfloat16")
        await driver.press("enter")
        await driver.until(lambda: "cannot be loaded in bfloat16" in driver.problem)
        assert driver.chat.conversation.precision == "int8"
        await driver.say("Third")
        assert loaded == ["int8", "bfloat16"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"precision": "half"}, "precision is 'half'; expected one of auto, float32"),
        ({"template": "odd", "temperature": "0"}, "there is no template 'odd'"),
    ],
)
async def test_what_cannot_be_used_is_said_and_nothing_is_used(open_app, values, words):
    async with open_app() as driver:
        await open_parameters(driver, **values)
        await driver.press("enter")
        assert words in problem(driver)
        assert driver.chat.conversation.choices.sampling == Sampling()
        assert driver.status.template == "plain"


async def test_a_reply_being_written_keeps_its_template(open_app, tmp_path):
    model = ScriptedModel(["One two."])
    model.gate = threading.Event()
    async with open_app(model) as driver:
        await driver.press(*"First", "enter")
        await driver.until(lambda: driver.texts)
        await open_parameters(driver, template="alpaca")
        await driver.press("enter")
        assert "a reply is being written" in problem(driver)
        field(driver, "template").value = "plain"
        field(driver, "top_k").value = "9"
        await driver.press("enter")  # parameters hold from the next message on
        await driver.until(lambda: driver.app.screen is driver.chat)
        assert driver.chat.conversation.choices.sampling.top_k == 9
        model.gate.set()
        await driver.idle()
