"""The model before a switch leaves memory, although the collector looks at nothing older."""

import gc
import weakref

import pytest
from tiny import write_tiny_gpt2

from chatapp.common.settings import Settings
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.models.loading import load_model


@pytest.fixture
def names(tmp_path):
    """Two models. The collector comes only when it is called, as it may in a chat."""
    gc.disable()
    yield str(write_tiny_gpt2(tmp_path / "first")), str(write_tiny_gpt2(tmp_path / "second"))
    gc.unfreeze()
    gc.enable()


@pytest.mark.parametrize("held", ["in a cycle", "by a closed inspector"])
async def test_a_switch_frees_the_model_before(open_app, names, held):
    first, second = names
    settings = Settings(model=first, precision="float32", device="cpu")
    async with open_app(load=lambda: load_model(first), settings=settings) as driver:
        await driver.ready()
        await driver.say("Hello")
        model = driver.chat.conversation.model
        assert isinstance(model, LocalModel)
        weights = weakref.ref(model.decoder.token_embedding)
        if held == "in a cycle":
            cycle = [model]
            cycle.append(cycle)
            del cycle
        if held == "by a closed inspector":
            await driver.shows("tokens of prompt", "f3")
            await driver.press("5", "6")
            await driver.idle()
            await driver.press("escape")
        del model
        driver.chat.controls.models.load_other(second)
        await driver.until(lambda: driver.chat.conversation.session is not None)
        await driver.say("Hello")

        def is_freed():
            gc.collect()
            return weights() is None

        await driver.until(is_freed)  # an answer to a closed screen may be on its way
