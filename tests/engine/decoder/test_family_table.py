"""Each family of the table is used: loaded, compared, quantised, exported to GGUF and read back."""

import pytest
import torch
from random_models import GPT2_SIZES, LLAMA3, SIZES, logits_of, save_random

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.decoder.families import FAMILIES
from chatapp.engine.errors import ModelError
from chatapp.engine.exporting import write_gguf
from chatapp.engine.generation import LocalGenerator
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import find_model

IDS = [5, 300, 17, 8, 250, 33, 9, 9, 120, 44]
TEXT = "The quick café, 12 dogs  <|endoftext|>\n\n— 日本"

_LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 1e4,
}
_SCALED = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8}

SHAPES = {
    "gpt2": [GPT2_SIZES, GPT2_SIZES | {"n_inner": 96, "tie_word_embeddings": False}],
    "gpt_neox": [{key: size for key, size in SIZES.items() if key != "num_key_value_heads"}],
    "llama": [
        SIZES | {"rms_norm_eps": 1e-5, "attention_bias": True},
        SIZES | {"head_dim": 32, "tie_word_embeddings": True},
        SIZES | {"rope_parameters": LLAMA3},
        SIZES | {"rope_parameters": _LINEAR},
        SIZES | {"rope_parameters": _YARN},
    ],
    "mistral": [SIZES | {"sliding_window": 32}],
    "qwen2": [SIZES],
    "qwen3": [SIZES | {"head_dim": 32, "tie_word_embeddings": True}],
    "gemma": [SIZES | {"head_dim": 32}],
    "gemma2": [SIZES | _SCALED],
    "gemma3_text": [SIZES | _SCALED | {"num_hidden_layers": 7}],
}
"""Shapes that a GGUF file supports, of every family."""

BOUNDS = {"int8": 0.005, "int4": 0.2}
"""What rounding may cost, as a Kullback-Leibler divergence in nats. It costs up to 0.0014 and 0.10
here; one matrix of queries with its rows in a wrong order costs 0.36 to 1.05."""


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_loaded_quantised_exported_and_read_back(
    family, tmp_path, bpe, monkeypatch
):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    for number, config in enumerate(SHAPES[family]):
        folder = tmp_path / str(number)
        reference = save_random(folder, family, bpe, **config)
        assert type(reference).__name__ == FAMILIES[family].class_name
        wanted = logits_of(reference, IDS)[:, :340]
        model = load(folder)
        assert isinstance(model, LocalModel) == (FAMILIES[family].checkpoint is not None)
        assert torch.allclose(model.logits(IDS)[:340], wanted[-1], atol=1e-4)
        check_quantised(folder, family, wanted)
        check_exported(folder, model, wanted)


def load(path):
    model = load_model(str(path))
    assert isinstance(model, LocalGenerator)
    return model


def check_quantised(path, family, wanted):
    """Rounded weights give nearly the same probabilities, where the decoder can have them."""
    for precision, bound in BOUNDS.items():
        if FAMILIES[family].checkpoint is None:
            with pytest.raises(ModelError, match=f"can be loaded in {precision}; choose float32"):
                load_model(str(path), precision=precision)
            continue
        model = load_model(str(path), precision=precision)
        assert isinstance(model, LocalModel)
        assert model.precision == precision
        exact = wanted.log_softmax(-1)
        rounded = model.decoder.forward(IDS, all_positions=True).log_softmax(-1)
        assert 0 < float((exact.exp() * (exact - rounded)).sum(-1).mean()) < bound


def check_exported(folder, model, wanted):
    path = folder / "out" / "model.gguf"
    write_gguf(find_model(str(folder)), path, "f32", {}, lambda *_: None)
    again = load(path)
    assert isinstance(again, type(model))
    assert torch.allclose(again.logits(IDS)[:340], wanted[-1], atol=1e-4)
    assert again.tokenizer.encode(TEXT) == model.tokenizer.encode(TEXT)
    assert again.end_ids == model.end_ids == {0}
    # Within its window a Mistral is a Llama, which is what a file says it is.
    assert again.context == (32 if find_model(str(folder)).family == "mistral" else 64)
    family = find_model(str(path)).family
    check_quantised(path, family, wanted)
