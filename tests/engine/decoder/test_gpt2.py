"""Checkpoints of GPT-2: their layouts, and what is refused. Logits: see test_families."""

import json
import shutil

import pytest
import torch
from random_models import logits_of
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from chatapp.engine.backends.local import load_decoder
from chatapp.engine.decoder import parts
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ModelFiles

IDS = torch.randint(0, 340, (60,), generator=torch.Generator().manual_seed(1)).tolist()


def close(ours, theirs):
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max()) <= 1e-4


def test_a_gelu_of_many_numbers():
    x = torch.linspace(-30, 30, 2**17)
    wanted = F.gelu(x, approximate="tanh")
    assert torch.allclose(parts.ACTIVATIONS["gelu_new"](x), wanted, atol=2e-6)


def test_an_abandoned_pass_leaves_the_cache_usable(gpt2):
    ours, reference = load_decoder(ModelFiles.read(gpt2[0])), gpt2[1]
    cache = ours.new_cache()
    ours.forward(IDS[:10], cache)
    calls = iter([None, RuntimeError])

    def raise_if_cancelled():
        if error := next(calls):
            raise error

    with pytest.raises(RuntimeError):
        ours.forward(IDS[10:30], cache, raise_if_cancelled=raise_if_cancelled)
    assert cache.ids == IDS[:10]
    assert close(ours.forward(IDS[10:40], cache), logits_of(reference, IDS[:40])[-1])


def test_sharded(make_gpt2):
    folder, reference = make_gpt2(shard="40KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert close(
        load_decoder(ModelFiles.read(folder)).forward(IDS, all_positions=True),
        logits_of(reference, IDS),
    )
    missing = min(folder.glob("*.safetensors"))
    missing.unlink()
    with pytest.raises(ModelError, match=missing.name):
        load_decoder(ModelFiles.read(folder))


def rewritten(source, target, change):
    """A copy of a checkpoint whose dictionary of tensors went through `change`."""
    shutil.copytree(source, target)
    tensors = change(load_file(target / "model.safetensors"))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        target / "model.safetensors",
    )
    return target


def without_prefix(tensors):
    return {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}


def with_buffers(tensors):
    mask = torch.ones(1, 1, 64, 64, dtype=torch.uint8).tril()
    old = {
        "transformer.h.0.attn.bias": mask,
        "transformer.h.1.attn.masked_bias": torch.tensor(-1e4),
    }
    return tensors | old


def with_tied_head(tensors):
    return tensors | {"lm_head.weight": tensors["transformer.wte.weight"].clone()}


@pytest.mark.parametrize("change", [without_prefix, with_buffers, with_tied_head])
def test_layouts_of_checkpoints(gpt2, tmp_path, change):
    folder, reference = gpt2
    ours = load_decoder(ModelFiles.read(rewritten(folder, tmp_path / "model", change)))
    assert close(ours.forward(IDS, all_positions=True), logits_of(reference, IDS))


def test_an_output_matrix_of_its_own_wins_over_the_config(gpt2, tmp_path):
    head = torch.randn(340, 32)
    folder = rewritten(gpt2[0], tmp_path / "model", lambda t: t | {"lm_head.weight": head})
    expected = load_decoder(ModelFiles.read(gpt2[0])).hidden([IDS])[0] @ head.T
    assert close(load_decoder(ModelFiles.read(folder)).forward(IDS, all_positions=True), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_float_type_becomes_float32(gpt2, tmp_path, dtype):
    folder = rewritten(
        gpt2[0],
        tmp_path / "model",
        lambda t: {name: tensor.to(dtype) for name, tensor in t.items()},
    )
    rounded = rewritten(
        gpt2[0],
        tmp_path / "rounded",
        lambda t: {name: tensor.to(dtype).float() for name, tensor in t.items()},
    )
    logits = load_decoder(ModelFiles.read(folder)).forward(IDS)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, load_decoder(ModelFiles.read(rounded)).forward(IDS))


def test_rows_that_pad_the_vocabulary_get_no_logits(gpt2):
    folder, reference = gpt2
    ours = load_decoder(ModelFiles.read(folder), vocabulary=300)
    assert close(ours.forward(IDS), logits_of(reference, IDS)[-1, :300])


def drop(tensors):
    return {name: tensor for name, tensor in tensors.items() if "h.1.mlp.c_fc.bias" not in name}


def misshape(tensors):
    name = "transformer.h.0.attn.c_proj.weight"
    return tensors | {name: tensors[name][:, :31]}


def integer(tensors):
    name = "transformer.h.0.attn.c_proj.weight"
    return tensors | {name: tensors[name].to(torch.int8)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop, ["h.1.mlp.c_fc.bias", "missing"]),
        (misshape, ["h.0.attn.c_proj.weight", "[32, 31]", "[32, 32]"]),
        (integer, ["h.0.attn.c_proj.weight", "int8"]),
        (lambda t: t | {"h.0.extra.weight": torch.zeros(1)}, ["h.0.extra.weight", "belong"]),
    ],
)
def test_wrong_tensors_are_named(gpt2, tmp_path, change, words):
    folder = rewritten(gpt2[0], tmp_path / "model", change)
    with pytest.raises(ModelError) as error:
        load_decoder(ModelFiles.read(folder))
    for word in ["model.safetensors", *words]:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n_layer", 0),
        ("n_layer", True),
        ("n_embd", "32"),
        ("n_head", 5),
        ("n_inner", -1),
        ("activation_function", "swish"),
        ("activation_function", ["gelu"]),
        ("add_cross_attention", True),
        ("quantization_config", {"bits": 4}),
        ("model_type", "bert"),
        ("layer_norm_epsilon", None),
        ("scale_attn_weights", "yes"),
    ],
)
def test_wrong_configs_name_file_and_key(gpt2, tmp_path, key, value):
    config = json.loads((gpt2[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(ModelError, match=key) as error:
        _ = ModelFiles.read(tmp_path).architecture
    assert str(tmp_path / "config.json") in str(error.value)


@pytest.mark.parametrize("precision", ["float32", "int4"])
def test_weights_that_are_integers_are_refused(precision, gpt2, tmp_path):
    name = "transformer.h.1.mlp.c_fc.weight"
    folder = rewritten(gpt2[0], tmp_path / "model", lambda t: t | {name: t[name].to(torch.uint8)})
    with pytest.raises(ModelError, match=r"c_fc\.weight' holds torch\.uint8; expected a float"):
        load_decoder(ModelFiles.read(folder), precision=precision)
