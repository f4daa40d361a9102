"""A chat's model and sampling are its own, and are there again when it is reopened."""

import pytest
from fakes import ScriptedModel

from chatapp.common.parameters import Sampling
from chatapp.common.paths import settings_path
from chatapp.common.settings import Settings, load_settings
from chatapp.engine.errors import ModelError
from chatapp.engine.models import loading


@pytest.fixture
def loaded(monkeypatch):
    """The names of the models that were loaded; one named "gone" cannot be."""
    names = []

    def load_model(name, **_):
        names.append(name)
        if name == "gone":
            raise ModelError("gone: there is no such folder")
        return ScriptedModel(["Yes."], name=name)

    monkeypatch.setattr(loading, "load_model", load_model)
    return names


def held_with(store, model):
    chat_id = store.create_chat(model=model, template="plain")
    message = store.add_message(chat_id, None, "user", f"said to {model}")
    store.add_message(chat_id, message.id, "assistant", "Yes.")
    return chat_id


async def test_a_chat_reopens_in_its_model(open_app, store, loaded):
    mine, gone = held_with(store, "mine"), held_with(store, "gone")
    async with open_app(ScriptedModel(["No."], name="first")) as driver:
        await driver.ready()
        await driver.chat.controls.open(mine)
        await driver.ready()
        assert driver.chat.conversation.model.name == "mine"
        await driver.chat.controls.open(gone)
        await driver.ready()
        assert driver.problem.startswith("This chat used gone, which cannot be loaded:")
        assert driver.chat.conversation.model.name == "mine"
        await driver.say("Go on")
        assert store.chat(gone).model == "mine", "what its last reply came from"
        assert loaded == ["mine", "gone"]


async def test_sampling_is_kept_with_the_chat(open_app, store):
    other = held_with(store, "")
    async with open_app() as driver:
        await driver.order("/set temperature 0.2")
        await driver.say("Hello")
        chat_id = driver.chat.conversation.chat.id
        await driver.order("/set top_k 3")
        await driver.chat.controls.open(other)
        assert driver.chat.conversation.choices.sampling == Sampling()
    async with open_app(chat_id=chat_id) as driver:
        await driver.ready()
        assert driver.chat.conversation.choices.sampling == Sampling(temperature=0.2, top_k=3)
        assert driver.chat.conversation.choices.origins["top_k"] == "this chat"


async def test_f2_makes_values_the_default_of_all_chats(open_app, store):
    other = held_with(store, "")
    settings_path().parent.mkdir(parents=True)
    settings_path().write_text('# mine\ntop_k = 7\n[keys]\nhelp = "f9"\n')
    async with open_app(settings=load_settings()) as driver:
        await driver.press("f2")
        driver.app.screen.query_one("#temperature").value = "0.3"
        await driver.back("ctrl+t")
        await driver.chat.controls.open(other)
        assert driver.chat.conversation.choices.sampling == Sampling(temperature=0.3, top_k=7)
    text = settings_path().read_text()
    assert "# mine" in text
    assert load_settings().sampling == Sampling(temperature=0.3, top_k=7)
    assert load_settings().keys


async def test_a_default_that_cannot_be_kept_is_told_and_not_used(open_app, tmp_path):
    settings_path().mkdir(parents=True)
    async with open_app(settings=Settings()) as driver:
        await driver.press("f2")
        driver.app.screen.query_one("#temperature").value = "0.3"
        await driver.press("ctrl+t")
        assert "temperature cannot be saved" in str(
            driver.app.screen.query_one("#field-problem").content
        )
        assert driver.chat.conversation.choices.sampling == Sampling()
