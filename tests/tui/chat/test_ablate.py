"""/ablate switches parts of the model off, and the screen says so until they are on again."""

import pytest
from tiny import write_tiny_gpt2

from chatapp.common.parameters import Sampling
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.files.model_files import ModelFiles
from chatapp.lab.steering import directions_dir


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_tiny_gpt2(tmp_path_factory.mktemp("model"), context=256)


async def test_parts_are_off_until_they_are_on_again(open_app, store, folder):
    model = LocalModel.load(ModelFiles.read(folder), name="tiny")
    async with open_app(model) as driver:
        await driver.ready()
        driver.chat.conversation.set_sampling(Sampling(temperature=0, max_tokens=6))
        await driver.shows("without 1.0 0.mlp", *"/ablate 1.0 0.mlp", "enter")
        await driver.say("Hi")
        await driver.order("/ablate")
        await driver.order("/ablate 5.1")
        assert "5.1: there is no layer 5; the model has 2, numbered 0 to 1" in driver.problem
        assert driver.chat.conversation.chat.interventions.words == "without 1.0 0.mlp"
        driver.prompt.text = ""
        await driver.order("/ablate none")
        await driver.until(lambda: not driver.chat.conversation.chat.interventions)
        await driver.say("Hi")
        chat_id = driver.chat.conversation.chat.id
        assert chat_id is not None
        replies = [message for message in store.path(chat_id) if message.role == "assistant"]
        assert [reply.changes for reply in replies] == ["without 1.0 0.mlp", ""]
        # In the transcript only: the status line is as before.
        assert "without 1.0 0.mlp" in driver.screen_text
        assert driver.chat.widgets.status.changes == ""


async def test_another_chat_has_the_whole_model(open_app, store, folder):
    model = LocalModel.load(ModelFiles.read(folder), name="tiny")
    async with open_app(model) as driver:
        await driver.ready()
        await driver.order("/ablate 1")
        await driver.until(lambda: driver.chat.widgets.status.changes == "without 1")
        await driver.press("ctrl+n")
        await driver.until(lambda: driver.chat.widgets.status.changes == "")
        assert not driver.chat.conversation.chat.interventions


async def test_a_name_too_long_for_the_system_is_given_back_with_a_sentence(open_app, folder):
    model = LocalModel.load(ModelFiles.read(folder), name="tiny")
    directions_dir().mkdir(parents=True)
    async with open_app(model) as driver:
        await driver.ready()
        command = f"/steer {'x' * 300} 1"
        await driver.order(command)
        await driver.until(lambda: "is not a valid path: it is too long" in driver.problem)
        assert driver.prompt.text == command
