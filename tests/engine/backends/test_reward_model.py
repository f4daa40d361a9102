"""Reward models: told from others by their files, and asked for a number."""

from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import save_file

from chatapp.engine.backends.head import HEAD_FILE, HEAD_WEIGHTS, HeadSpec
from chatapp.engine.errors import ModelError
from chatapp.engine.models.loading import load_reward_model, scores_replies


def test_reward_models_are_told_from_others(tmp_path: Path) -> None:
    run = tiny.write_tiny_reward_model(tmp_path / "reward")
    assert scores_replies(str(run))
    assert not scores_replies(str(tiny.write_tiny_gpt2(tmp_path / "base")))
    assert not scores_replies("http://localhost:1/v1")
    HeadSpec("classification", ("a", "b"), "").save(run)
    assert not scores_replies(str(run))
    (run / HEAD_FILE).write_text("{")
    assert not scores_replies(str(run))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_no_number_is_no_score(tmp_path: Path, number: float) -> None:
    run = tiny.write_tiny_reward_model(tmp_path / "reward")
    assert isinstance(load_reward_model(str(run)).score([5, 6]), float)
    layer = {"weight": torch.zeros(1, 16), "bias": torch.tensor([number])}
    save_file(layer, run / HEAD_WEIGHTS)
    with pytest.raises(ValueError, match=f"gives {number}; its weights are damaged"):
        load_reward_model(str(run)).score([5, 6])


def test_an_error_without_words_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    run = tiny.write_tiny_reward_model(tmp_path / "reward")
    monkeypatch.setattr("safetensors.torch.load_file", fail)
    with pytest.raises(ModelError, match="not the weights of this head: RuntimeError"):
        load_reward_model(str(run))
