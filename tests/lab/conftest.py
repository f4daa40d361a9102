"""A tiny model of each family, and the same one of transformers."""

from typing import Any

import pytest
from family_shapes import SHAPES, START, make_family
from random_models import bpe, gpt2, local, make_gpt2, one_thread

from chatapp.engine.backends.local import LocalModel, load_decoder
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.tokenizers import BPETokenizer

__all__ = ["bpe", "gpt2", "local", "make_gpt2", "one_thread"]


@pytest.fixture(scope="module", params=SHAPES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, bpe: Any
) -> tuple[LocalModel, Any]:
    folder = tmp_path_factory.mktemp("family")
    reference = make_family(request.param, folder)
    reference.set_attn_implementation("eager")
    decoder = load_decoder(ModelFiles.read(folder))
    return LocalModel(decoder, BPETokenizer(bpe, 0), name="a", start=[START]), reference
