"""Pretraining of a Transformer-XL: segments and memory, against the decoder that chats with it."""

import json

import numpy as np
import pytest
import tiny_finetune as tiny
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch.nn import functional

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.models.loading import load_model
from finetune.config.sections import ConfigError, PretrainConfig
from finetune.data.corpus import in_lanes
from finetune.pretrain import pretrain
from finetune.training.architectures import build_network, by_key

QUIET = Console(stderr=True, quiet=True)
SHAPE = {
    **{"vocabulary": 280, "layers": 2, "heads": 2, "hidden": 16, "positions": 12},
    "architecture": "transformer-xl",
}


def config(folder, **train):
    folder.mkdir(exist_ok=True)
    rows = [{"text": f"The number {i} comes after the number {i - 1}."} for i in range(160)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"batch_size": 4, "learning_rate": 0.01, "precision": "float32", "watch": False}
    return PretrainConfig.model_validate(
        {
            "output": str(folder / "run"),
            "data": {"train": str(folder / "corpus.jsonl"), "held_out": 0.1},
            "shape": SHAPE,
            "train": {**settings, "log_every": 1, "save_every": 10, **train},
        }
    )


def log(folder):
    return tiny.rows_of(folder, "losses.jsonl")


def test_each_token_sees_a_window():
    scores = torch.arange(15.0).view(3, 5)  # 3 tokens, the distances 4 to 0
    assert by_key(scores, 5).tolist() == [
        [-torch.inf, 0, 1, 2, 3, 4, -torch.inf, -torch.inf],
        [-torch.inf, -torch.inf, 5, 6, 7, 8, 9, -torch.inf],
        [-torch.inf, -torch.inf, -torch.inf, 10, 11, 12, 13, 14],
    ]
    assert torch.equal(by_key(scores, 2), by_key(scores, 5)[:, 3:])


def test_batches_continue_row_by_row():
    windows = np.arange(14, dtype=np.int32).reshape(7, 2)
    batches = in_lanes(windows, 3).reshape(-1, 3, 2)
    assert batches[:, 0].flatten().tolist() == [0, 1, 2, 3]
    assert batches[:, 2].flatten().tolist() == [8, 9, 10, 11]


def test_segments_with_memory_are_the_decoder_of_the_chat(tmp_path):
    folder = pretrain(config(tmp_path, max_steps=12), QUIET)
    chat = load_model(str(folder))
    assert isinstance(chat, LocalModel)
    network = build_network(config(tmp_path).shape, chat.tokenizer.size, 0).eval()
    names = json.loads((folder / "config.json").read_text())
    assert names["architectures"] == ["TransfoXLLMHeadModel"]
    network.load_state_dict(load_file(folder / "model.safetensors"))
    ids = torch.randint(0, chat.tokenizer.size, (1, 30))
    memory, logits = None, []
    with torch.no_grad():
        for size in (12, 12, 6):
            at = sum(len(part[0]) for part in logits)
            outputs = network(input_ids=ids[:, at : at + size], memory=memory)
            memory = outputs.memory
            logits.append(outputs.logits)
        mine = torch.cat(logits, 1)[0]
    wanted = chat.decoder.forward(ids[0].tolist(), all_positions=True)
    torch.testing.assert_close(mine, wanted, atol=1e-4, rtol=1e-4)


def test_no_gradient_flows_into_the_memory():
    torch.manual_seed(0)
    network = build_network(
        PretrainConfig.model_validate(
            {"output": "x", "data": {"train": "x"}, "shape": SHAPE}
        ).shape,
        30,
        0,
    )
    first, second = torch.randint(0, 30, (2, 3, 12))
    memory = network(input_ids=first).memory
    outputs = network(input_ids=second, labels=second, memory=memory)
    assert not any(states.requires_grad for states in memory)
    loss = functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), second[:, 1:].flatten())
    assert float(outputs.loss) == pytest.approx(float(loss))
    assert not torch.equal(outputs.logits, network(input_ids=second).logits)


def test_it_learns_measures_both_and_continues_as_unbroken(tmp_path, monkeypatch):
    whole = log(pretrain(config(tmp_path / "whole", max_steps=20), QUIET))
    losses = [row["loss"] for row in whole if "loss" in row]
    assert losses[-1] < losses[0] - 0.5
    measured = [row for row in whole if "eval_loss" in row][-1]
    # The memory is known text, so it helps.
    assert measured["eval_memory_loss"] < measured["eval_loss"]

    broken = config(tmp_path / "broken", max_steps=20)
    resumed = tiny.broken_off(broken, monkeypatch, 15, pretrain)
    resumed = [row["loss"] for row in log(resumed) if "loss" in row]
    assert resumed == pytest.approx(losses, abs=1e-6)


def test_too_little_text_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="fewer windows than"):
        pretrain(config(tmp_path, batch_size=10000), QUIET)
