"""Muon for the matrices inside the blocks, AdamW for the rest: one optimizer, saved as one."""

from pathlib import Path

import pytest
import tiny_finetune as tiny
import torch

from chatapp.engine.files.model_files import ModelFiles
from finetune.config.sections import Adapter, ConfigError, Steps, Train
from finetune.training.adapters import choose_trained
from finetune.training.optimizer import (
    hidden_matrices,
    make_optimizer,
    muon_beside_adamw,
    schedule,
)

SETTINGS = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8}


def stepped(model, optimizer, seeds):
    """Steps on gradients drawn at random, the same for the same seeds."""
    for seed in seeds:
        draw = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draw)
        optimizer.step()


def made(model):
    return muon_beside_adamw(model, hidden_matrices(model), weight_decay=0.1, **SETTINGS)


@pytest.mark.parametrize("model", [tiny.gpt2(), tiny.llama()], ids=["gpt2", "llama"])
def test_muon_has_the_matrices_inside_the_blocks_and_adamw_all_else(model):
    names = hidden_matrices(model)
    for name, parameter in model.named_parameters():
        inside = ".h." in name or ".layers." in name
        assert (name in names) == (inside and parameter.ndim == 2), name
    named = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = made(model).param_groups
    placed = [named[id(each)] for group in groups for each in group["params"]]
    assert sorted(placed) == sorted(named.values())
    in_muon = {named[id(p)] for group in groups if "ns_steps" in group for p in group["params"]}
    assert in_muon == names


def test_it_steps_as_muon_and_adamw_alone():
    together, apart = tiny.gpt2(), tiny.gpt2()
    matrices = hidden_matrices(apart)
    parameters = dict(apart.named_parameters())
    muon = torch.optim.Muon(
        [parameters[name] for name in matrices], lr=0.01, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(
        [each for name, each in parameters.items() if name not in matrices],
        weight_decay=0.0,
        **SETTINGS,
    )
    stepped(together, made(together), range(3))
    for seed in range(3):
        stepped(apart, muon, range(seed, seed + 1))
        adamw.step()
    for name, parameter in together.named_parameters():
        torch.testing.assert_close(parameter, parameters[name], msg=name)


def test_adapters_learn_by_it_and_embeddings_alone_are_refused():
    adapter = Adapter.model_validate({})
    files = ModelFiles(Path("."), {"model_type": "gpt2"}, None, Path("."), None)
    lora = Train(method="lora", optimizer="muon")
    wrapped = choose_trained(tiny.gpt2(), lora, adapter, files, name=".")
    learning = {name for name, each in wrapped.named_parameters() if each.requires_grad}
    assert learning
    assert learning <= hidden_matrices(wrapped)
    ends = Train(method="embeddings-and-head", optimizer="muon")
    with pytest.raises(ConfigError, match=r"train\.optimizer.*embeddings-and-head.*adamw"):
        choose_trained(tiny.gpt2(), ends, adapter, files, name="base")


def test_sharded_matrices_are_refused():
    with pytest.raises(ConfigError, match="muon needs whole matrices"):
        make_optimizer(tiny.gpt2(), Steps(optimizer="muon"), sharded=True)


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_every_step_has_a_learning_rate(kind):
    factor = schedule(kind, 3, 10)
    rising, falling = [[factor(step) for step in part] for part in (range(3), range(3, 10))]
    assert rising == pytest.approx([0.25, 0.5, 0.75])
    assert falling[0] == 1.0
    assert falling == sorted(falling, reverse=True)
    assert all(each > 0 for each in falling)
    assert factor(10) == (1.0 if kind == "constant" else pytest.approx(0.0, abs=1e-12))
    assert [schedule(kind, 0, 2)(0), schedule(kind, 1, 1)(0)] == [1.0, 0.5]
