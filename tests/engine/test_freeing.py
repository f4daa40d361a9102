"""A model that nobody holds any more leaves memory at once.

The chat takes what is in memory out of the sight of Python's collector of cycles (`gc.freeze`), so
that a cycle through a model would keep its weights for good, on a GPU as well.
"""

import gc
import weakref

import pytest

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.backends.transformers_model import TransformersModel
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import Request, Sampling
from chatapp.lab.inspectable import inspectable

IDS = [(7 * n * n + 3) % 340 for n in range(30)]


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def use(model):
    list(model.generate(Request(IDS, Sampling(max_tokens=5))))
    model.score([(IDS[:5], IDS[5:8])])
    model.embed(IDS)
    opened = inspectable(model)
    opened.inspect(IDS).attention(3)
    opened.stepper(IDS, Sampling()).draw()


@pytest.mark.usefixtures("no_collector")
def test_a_decoder_is_freed(gpt2):
    model = LocalModel.load(ModelFiles.read(gpt2[0]))
    use(model)
    weights = weakref.ref(model.decoder.token_embedding)
    del model
    assert weights() is None


@pytest.mark.usefixtures("no_collector")
def test_a_model_of_transformers_is_freed(gpt2):
    model = TransformersModel.load(ModelFiles.read(gpt2[0]))
    use(model)
    weights = weakref.ref(model.network.get_input_embeddings().weight)
    del model
    assert weights() is None
