"""Reward models are asked for a number."""

import pytest
import tiny
import torch
from safetensors.torch import save_file

from chatapp.engine.backends.head import HEAD_WEIGHTS
from chatapp.engine.errors import ModelError
from chatapp.engine.models.loading import load_reward_model


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_no_number_is_no_score(tmp_path, number):
    run = tiny.write_tiny_reward_model(tmp_path / "reward")
    assert isinstance(load_reward_model(str(run)).score([5, 6]), float)
    layer = {"weight": torch.zeros(1, 16), "bias": torch.tensor([number])}
    save_file(layer, run / HEAD_WEIGHTS)
    with pytest.raises(ValueError, match=f"gives {number}; its weights are damaged"):
        load_reward_model(str(run)).score([5, 6])


def test_an_error_without_words_is_a_sentence(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError

    run = tiny.write_tiny_reward_model(tmp_path / "reward")
    monkeypatch.setattr("safetensors.torch.load_file", fail)
    with pytest.raises(ModelError, match="not the weights of this head: RuntimeError"):
        load_reward_model(str(run))
