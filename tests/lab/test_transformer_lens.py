"""Attribution, ablation and patching give what TransformerLens 4.3 gives, on the same weights.

It has no place in the environment of the tests, and brings its own dependencies: where it is not
installed, these are skipped.
"""

from functools import partial

import pytest
import torch
from random_models import save_random

from chatapp.engine.backends.local import load_decoder
from chatapp.engine.files.model_files import ModelFiles
from chatapp.lab.contributions import effects, shares
from chatapp.lab.heads import Sums, add_random
from chatapp.lab.patching import patch
from chatapp.lab.reruns import Contrast, Reading

bridges = pytest.importorskip("transformer_lens.model_bridge")

CLEAN = torch.randint(0, 340, (14,), generator=torch.Generator().manual_seed(3)).tolist()
CORRUPT = [*CLEAN[:5], 17, *CLEAN[6:9], 200, *CLEAN[10:13], 91]
CONTRAST = Contrast(7, 11)

_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
SHAPES = {
    "gpt2": {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 64},
    "llama": _SIZES,
    "mistral": _SIZES | {"sliding_window": None},
    "qwen2": _SIZES,
    "qwen3": _SIZES | {"head_dim": 8},
    "gpt_neox": _SIZES | {"num_key_value_heads": 4},
    "gemma3_text": _SIZES | {"head_dim": 8},
}


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory, bpe):
    folder = tmp_path_factory.mktemp("lens")
    model = save_random(folder, request.param, bpe, **SHAPES[request.param])
    bridge = bridges.TransformerBridge.boot_transformers(str(folder), hf_model=model)
    return load_decoder(ModelFiles.read(folder)), bridge


def difference(logits):
    return float(CONTRAST.of(logits[0, -1]))


@torch.no_grad()
def test_scores_of_heads(pair):
    ours, bridge = pair
    ids = [*CLEAN[:10], *CLEAN[:10]]
    sums = Sums(ours)
    add_random(sums, ours, ids, 0)
    found = sums.means()
    _, cache = bridge.run_with_cache(torch.tensor([ids]))
    for layer in range(2):
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"][0]
        for name, rows in (
            ("previous", pattern.diagonal(-1, 1, 2)),
            ("duplicate", pattern.diagonal(-10, 1, 2)),
            ("induction", pattern.diagonal(-9, 1, 2)[:, 1:]),
        ):
            theirs = rows.mean(1).tolist()
            assert found[name][layer].tolist() == pytest.approx(theirs, abs=1e-5), name


@torch.no_grad()
def test_shares(pair):
    ours, bridge = pair
    logits, cache = bridge.run_with_cache(torch.tensor([CLEAN]))
    found = {part.name: part.share for part in shares(Reading(ours, CLEAN), CONTRAST)}
    assert sum(found.values()) == pytest.approx(difference(logits), abs=1e-3)
    scale = cache["ln_final.hook_scale"][0, -1]
    direction = bridge.W_U[:, CONTRAST.token] - bridge.W_U[:, CONTRAST.against]
    weight = ours.norm.weight

    def share(part):
        part = part - part.mean() if "norm" in found else part
        return float((part / scale * weight) @ direction)

    for layer in range(2):
        assert found[f"{layer}.mlp"] == pytest.approx(
            share(cache[f"blocks.{layer}.hook_mlp_out"][0, -1]), abs=1e-3
        )
        mixed = cache[f"blocks.{layer}.attn.hook_z"][0, -1].view(4, -1)
        for head in range(4):
            added = mixed[head] @ bridge.W_O[layer, head]
            after = ours.blocks[layer].norm_after_1
            if after is not None:  # Gemma's, with the scale of the whole update
                whole = sum(mixed[each] @ bridge.W_O[layer, each] for each in range(4))
                added = added * after.weight / (whole.square().mean() + after.epsilon).sqrt()
            assert found[f"{layer}.{head}"] == pytest.approx(share(added), abs=1e-3)


@torch.no_grad()
def test_ablation(pair):
    ours, bridge = pair
    ids = torch.tensor([CLEAN])
    found = effects(Reading(ours, CLEAN), CONTRAST)
    before = difference(bridge(ids))

    def switch_off(value, hook, head):
        value = value.clone()
        if head is None:
            value.zero_()
        else:
            value.view(*value.shape[:2], 4, -1)[:, :, head] = 0
        return value

    for layer in range(2):
        for head in (*range(4), None):
            place = f"blocks.{layer}." + ("hook_mlp_out" if head is None else "attn.hook_z")
            off = [(place, partial(switch_off, head=head))]
            after = difference(bridge.run_with_hooks(ids, fwd_hooks=off))
            name = f"{layer}.mlp" if head is None else f"{layer}.{head}"
            assert found[name] == pytest.approx(before - after, abs=1e-3)


@torch.no_grad()
def test_patching(pair):
    ours, bridge = pair
    _, kept = bridge.run_with_cache(torch.tensor([CLEAN]))
    clean, corrupt = Reading(ours, CLEAN), Reading(ours, CORRUPT)
    gap = clean.logits - corrupt.logits
    contrast = Contrast(int(gap.argmax()), int(gap.argmin()))
    result = patch(clean, corrupt, contrast)
    low, high = result.corrupt, result.clean
    assert result.is_divided

    def put(value, hook, at, head):
        value, clean = value.clone(), kept[hook.name]
        if head is None:
            value[:, at] = clean[:, at]
        else:
            apart = value.view(*value.shape[:2], 4, -1)
            apart[:, :, head] = clean.view(apart.shape)[:, :, head]
        return value

    def restored(place, at=None, head=None):
        hooks = [(place, partial(put, at=at, head=head))]
        logits = bridge.run_with_hooks(torch.tensor([CORRUPT]), fwd_hooks=hooks)
        return (float(contrast.of(logits[0, -1])) - low) / (high - low)

    states, heads = result.grids
    for layer in range(2):
        for at in range(len(CLEAN)):
            theirs = restored(f"blocks.{layer}.hook_resid_pre", at=at)
            assert states.values[layer][at] == pytest.approx(theirs, abs=2e-3)
        for head in range(4):
            theirs = restored(f"blocks.{layer}.attn.hook_z", head=head)
            assert heads.values[layer][head] == pytest.approx(theirs, abs=2e-3)
