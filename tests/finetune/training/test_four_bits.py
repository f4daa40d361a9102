"""A base in four bits (QLoRA), with fakes where transformers would ask bitsandbytes and a GPU.

Invariant: nothing of `finetune` is replaced but the question whether there is a GPU. What is faked
is `from_pretrained`, which gives the base in float32 and marked as one in four bits.
"""

import pytest
import tiny_finetune as tiny
import torch
import transformers
from rich.console import Console
from safetensors import safe_open

from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import find_model
from finetune.run import train
from finetune.training import setup

QUIET = Console(stderr=True, quiet=True)


@pytest.fixture
def asked(monkeypatch):
    """What `from_pretrained` was asked for in four bits, on a machine that seems to have a GPU."""
    calls = []
    read = transformers.AutoModelForCausalLM.from_pretrained

    def from_pretrained(folder, **options):
        if "quantization_config" not in options:
            return read(folder, **options)
        calls.append({name: options.pop(name) for name in ("quantization_config", "device_map")})
        model, loading = read(folder, **options)
        count = model.num_parameters()
        model.num_parameters = lambda **_: count  # transformers would ask bitsandbytes for types
        model.is_loaded_in_4bit = True
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.to(torch.bfloat16)
        return model, loading

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    monkeypatch.setattr(setup, "find_spec", lambda name: object())
    monkeypatch.setattr(setup, "training_device", lambda asked: "cuda")
    return calls


def test_a_base_in_four_bits_learns_by_its_adapter(tmp_path, asked):
    settings = {"method": "lora", "max_steps": 12, "learning_rate": 0.05}
    adapter = {"base_precision": "int4", "rank": 4}
    run = train(tiny.config(tmp_path, train=settings, adapter=adapter), QUIET)
    ((config, where),) = [tuple(call.values()) for call in asked]
    assert where == {"": 0}
    assert config.load_in_4bit
    assert config.bnb_4bit_quant_type == "nf4"
    assert config.bnb_4bit_use_double_quant
    assert config.bnb_4bit_compute_dtype == torch.bfloat16
    losses = list(tiny.trace(run).values())
    assert losses[-1] < losses[0] - 0.1
    with safe_open(run / "adapter_model.safetensors", "pt") as file:
        names = set(file.keys())
        assert all(".lora_" in name for name in names)
        assert {file.get_tensor(name).dtype for name in names} == {torch.float32}
    # It is chatted with on the whole base.
    assert len(asked) == 1
    assert load_model(str(run)).files == find_model(str(run))
    assert len(asked) == 1


def test_what_is_in_four_bits_is_frozen_and_norms_are_exact(tmp_path, asked):
    settings = {"method": "lora", "max_steps": 1}
    made = setup.set_up_run(
        tiny.config(tmp_path, train=settings, adapter={"base_precision": "int4"}), "cuda"
    )
    learnt = {name for name, weight in made.model.named_parameters() if weight.requires_grad}
    assert learnt
    assert all(".lora_" in name for name in learnt)
    norms = [module for module in made.model.modules() if isinstance(module, torch.nn.LayerNorm)]
    assert {norm.weight.dtype for norm in norms} == {torch.float32}
