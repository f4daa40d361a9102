"""Attribution, ablation, patching and circuits against hooks of transformers, in every family."""

import functools

import pytest
import torch
from family_shapes import SHAPES, make_family
from hooked import blocks_of, parts_of, without
from random_models import save_random

from chatapp.engine.backends.local import load_decoder
from chatapp.engine.decoder.interventions import parse_parts, switched_off
from chatapp.engine.files.model_files import ModelFiles
from chatapp.lab.circuit import small_circuit
from chatapp.lab.contributions import (
    effect_of,
    effects,
    effects_of_all,
    losses_without,
    means,
    runner_up,
    shares,
)
from chatapp.lab.patching import SMALLEST, patch, with_noise
from chatapp.lab.reruns import Contrast, LabError, Reading

CLEAN = torch.randint(0, 340, (14,), generator=torch.Generator().manual_seed(3)).tolist()
CORRUPT = [*CLEAN[:5], 17, *CLEAN[6:9], 200, *CLEAN[10:13], 91]


@pytest.fixture(scope="module", params=["gpt2", *SHAPES])
def pair(request, tmp_path_factory, bpe):
    folder = tmp_path_factory.mktemp("family")
    if request.param == "gpt2":
        shape = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 64}
        reference = save_random(folder, "gpt2", bpe, **shape)
    else:
        reference = make_family(request.param, folder)
    return load_decoder(ModelFiles.read(folder)), reference


@pytest.fixture
def clean(pair):
    return Reading(pair[0], CLEAN)


@pytest.fixture
def contrast(clean):
    best = int(clean.logits.argmax())
    return Contrast(best, runner_up(clean.logits, best))


def their_logits(reference, ids):
    """transformers' logits after the last token, without Gemma's cap."""
    cap = getattr(reference.config, "final_logit_softcapping", None)
    with torch.no_grad():
        logits = reference(torch.tensor([ids])).logits[0, -1]
    return logits if cap is None else torch.atanh(logits / cap) * cap


# Attribution


def test_shares_add_up_to_the_difference_of_the_logits(pair):
    ours, reference = pair
    generator = torch.Generator().manual_seed(5)
    for size in range(1, 40, 2):  # 20 texts
        ids = torch.randint(0, 340, (size,), generator=generator).tolist()
        contrast = Contrast(7, 3 if size % 4 == 1 else None)
        total = sum(part.share for part in shares(Reading(ours, ids), contrast))
        wanted = float(contrast.of(their_logits(reference, ids)))
        assert total == pytest.approx(wanted, abs=1e-3)


def test_shares_add_up_while_parts_are_off(pair, contrast):
    ours, reference = pair
    off = switched_off(parse_parts("0.1 1.mlp", ours.architecture))
    parts = shares(Reading(ours, CLEAN, changes=off), contrast)
    by_name = {part.name: part.share for part in parts}
    with without(reference, "0.1", "1.mlp"):
        wanted = float(contrast.of(their_logits(reference, CLEAN)))
    assert sum(by_name.values()) == pytest.approx(wanted, abs=1e-3)
    assert by_name["1.mlp"] == pytest.approx(0, abs=1e-5)
    assert by_name["0.1"] == pytest.approx(0, abs=1e-5)


def test_the_share_of_a_last_head_is_what_hooks_say(pair, contrast):
    """In the last layer, without a norm after it and beside the MLP, a head has no other way."""
    ours, reference = pair
    layer = ours.architecture.layers - 1
    kept = {}
    projection, _, _ = parts_of(blocks_of(reference)[layer])
    inside = reference.base_model
    norm = getattr(inside, "norm", None) or getattr(inside, "final_layer_norm", None)
    norm = norm if norm is not None else inside.ln_f
    hooks = [
        projection.register_forward_pre_hook(lambda _, given: kept.update(mixed=given[0])),
        norm.register_forward_pre_hook(lambda _, given: kept.update(states=given[0])),
    ]
    after = getattr(blocks_of(reference)[layer], "post_attention_layernorm", None)
    is_normed = ours.architecture.has_norms_after
    their_logits(reference, CLEAN)
    for hook in hooks:
        hook.remove()
    size = ours.architecture.head_size
    columns = slice(size, 2 * size)
    only = torch.zeros_like(kept["mixed"][0, -1])
    only[columns] = kept["mixed"][0, -1, columns]
    with torch.no_grad():
        whole = projection(kept["mixed"][0, -1])
        added = projection(only) - projection(torch.zeros_like(only))
        if is_normed and after is not None:
            added = added * (after(whole) / whole)  # its scale, and its weights
        states = kept["states"][0, -1]
        share = norm_of_part(norm, added, states)
        head = reference.get_output_embeddings()
        expected = float(contrast.of(head(share)))
    found = {part.name: part.share for part in shares(Reading(ours, CLEAN), contrast)}
    assert found[f"{layer}.1"] == pytest.approx(expected, abs=1e-3)


def norm_of_part(norm, part, whole):
    """What a norm makes of a part of what it reads: the derivative along it, at a fixed scale."""
    if hasattr(norm, "bias"):
        factor = 1 / torch.sqrt(whole.var(unbiased=False) + norm.eps)
        return (part - part.mean()) * factor * norm.weight
    scaled = norm(whole)
    return part * (scaled / whole)


def test_effects_are_what_hooks_say(pair, clean, contrast):
    _, reference = pair
    before = float(contrast.of(their_logits(reference, CLEAN)))
    found = effects(clean, contrast)
    for name in ("0.0", "0.1", "1.1", "0.mlp", "1.mlp"):
        with without(reference, name):
            after = float(contrast.of(their_logits(reference, CLEAN)))
        assert found[name] == pytest.approx(before - after, abs=1e-3)


# Ablation


def test_all_effects_are_those_of_each_part_alone(pair, clean, contrast):
    shape = clean.decoder.architecture
    table = {effect.name: effect for effect in effects_of_all(clean, contrast)}
    assert len(table) == shape.layers * (shape.heads + 1)
    for name in ("0.1", "1.0", "0.mlp", "1.mlp"):
        alone = effect_of(clean, contrast, switched_off(parse_parts(name, shape)))
        for value in ("log_probability", "change", "difference", "difference_change", "kl"):
            assert getattr(table[name], value) == pytest.approx(getattr(alone, value), abs=1e-3)
    with without(pair[1], "0.1", "1.mlp"):
        logits = their_logits(pair[1], CLEAN).log_softmax(0)
    both = effect_of(clean, contrast, switched_off(parse_parts("0.1 1.mlp", shape)))
    assert both.log_probability == pytest.approx(float(logits[contrast.token]), abs=1e-3)
    whole = clean.logits.log_softmax(0)
    divergence = float((whole.exp() * (whole - logits)).sum())
    assert both.kl == pytest.approx(divergence, abs=1e-3)


def test_losses_without_each_part(pair, clean):
    _, reference = pair
    ids = torch.tensor([CLEAN])
    with torch.no_grad():
        before = float(reference(ids, labels=ids).loss)
        with without(reference, "1.1"):
            after = float(reference(ids, labels=ids).loss)
    loss, changes = losses_without(clean)
    assert loss == pytest.approx(before, abs=1e-3)
    assert changes["1.1"] == pytest.approx(after - before, abs=1e-3)
    with pytest.raises(LabError, match="at least two tokens"):
        losses_without(Reading(clean.decoder, CLEAN[:1]))


def test_the_mean_of_a_part_is_over_the_text(clean):
    parts = parse_parts("0.1 1.mlp 0.mlp.7", clean.decoder.architecture)
    seen = {}
    clean.decoder.hidden(
        [CLEAN],
        observe=lambda point, value: seen.setdefault(point, value),
        changes=means(clean, parts),
    )
    for point, mean in (
        ("blocks.0.attention.head.1", clean.heads[0, 1].mean(0)),
        ("blocks.1.mlp", clean.mlps[1].mean(0)),
    ):
        assert torch.allclose(seen[point][0], mean.expand_as(seen[point][0]), atol=1e-5)
    neurons = seen["blocks.0.mlp.neurons"][0, :, 7]
    assert torch.allclose(neurons, neurons[0].expand_as(neurons))


# Patching


def patched_by_hooks(reference, contrast, base, source, layer, at):
    """LD of `base` with the state before a layer at one token taken from `source`."""
    block, kept = blocks_of(reference)[layer], {}

    def keep(_, given, named):
        kept["states"] = given[0] if given else named["hidden_states"]

    hook = block.register_forward_pre_hook(keep, with_kwargs=True)
    their_logits(reference, source)
    hook.remove()

    def put(_, given, named):
        states = (given[0] if given else named["hidden_states"]).clone()
        states[:, at] = kept["states"][:, at]
        return ((states, *given[1:]), named) if given else ((), {**named, "hidden_states": states})

    hook = block.register_forward_pre_hook(put, with_kwargs=True)
    after = float(contrast.of(their_logits(reference, base)))
    hook.remove()
    return after


def far_apart(clean, corrupt):
    """Two tokens between which the prompts differ much."""
    gap = clean.logits - corrupt.logits
    return Contrast(int(gap.argmax()), int(gap.argmin()))


def test_patches_of_states_are_those_of_hooks(pair, clean):
    ours, reference = pair
    corrupt = Reading(ours, CORRUPT)
    contrast = far_apart(clean, corrupt)
    restored = patch(clean, corrupt, contrast)
    destroyed = patch(clean, corrupt, contrast, "destroy")
    high, low = restored.clean, restored.corrupt
    assert restored.is_divided
    assert high == pytest.approx(float(contrast.of(their_logits(reference, CLEAN))), abs=1e-3)
    for layer, at in ((0, 5), (1, 9), (1, 13), (0, 13), (1, 7)):
        ld = patched_by_hooks(reference, contrast, CORRUPT, CLEAN, layer, at)
        assert restored.grids[0].values[layer][at] == pytest.approx(
            (ld - low) / (high - low), abs=2e-3
        )
        ld = patched_by_hooks(reference, contrast, CLEAN, CORRUPT, layer, at)
        assert destroyed.grids[0].values[layer][at] == pytest.approx(
            (high - ld) / (high - low), abs=2e-3
        )
    unchanged = restored.grids[0].unchanged
    assert all(all(row[:5]) for row in unchanged)
    assert not unchanged[0][5]
    assert unchanged[0][6]  # before the first layer a token knows nothing of the others


def test_patches_of_heads_are_those_of_a_pass(pair, clean):
    corrupt = Reading(pair[0], CORRUPT)
    contrast = far_apart(clean, corrupt)
    grid = patch(clean, corrupt, contrast).grids[1]
    low, high = (float(contrast.of(each.logits)) for each in (corrupt, clean))
    for layer, head in ((0, 1), (1, 0)):
        point = f"blocks.{layer}.attention.head.{head}"

        def put(name, value, at=point, cell=(layer, head)):
            return clean.heads[cell][None] if name == at else value

        states = pair[0].hidden([CORRUPT], observe=put)
        ld = float(contrast.of(pair[0].uncapped_head(states[0, -1])))
        expected = (ld - low) / (high - low)
        assert grid.values[layer][head] == pytest.approx(expected, abs=2e-3)


def test_the_largest_estimates_are_measured(pair, clean):
    corrupt = Reading(pair[0], CORRUPT)
    contrast = far_apart(clean, corrupt)
    exact = patch(clean, corrupt, contrast)
    guessed = patch(clean, corrupt, contrast, estimate=True)
    for theirs, ours in zip(exact.grids, guessed.grids, strict=True):
        measured = [
            (layer, column)
            for layer, row in enumerate(ours.exact)
            for column, is_exact in enumerate(row)
            if is_exact and not ours.unchanged[layer][column]
        ]
        assert 0 < len(measured) <= 10
        for layer, column in measured:
            assert ours.values[layer][column] == pytest.approx(
                theirs.values[layer][column], abs=2e-3
            )


def test_the_estimate_is_the_derivative(pair, clean):
    """For a patch that is nearly nothing, the estimate is what is measured."""
    ours, _ = pair
    contrast = Contrast(3, 11)
    noisy = with_noise(clean, [4], seed=1)
    near = Reading(ours, CLEAN)
    near.heads = clean.heads + 1e-3 * (noisy.heads - clean.heads)
    near.states = clean.states + 1e-3 * (noisy.states - clean.states)
    exact = patch(near, clean, contrast).grids[1]
    guessed = patch(near, clean, contrast, estimate=True).grids[1]
    largest = max(abs(value) for row in exact.values for value in row)
    for ours_row, theirs in zip(guessed.values, exact.values, strict=True):
        assert ours_row == pytest.approx(theirs, abs=0.05 * largest + 1e-5)


def test_prompts_that_cannot_be_compared_say_so(pair, clean):
    with pytest.raises(LabError, match="have 14 and 13 tokens; patching needs the same number"):
        patch(clean, Reading(pair[0], CORRUPT[:-1]), Contrast(1, 2))
    same = patch(clean, clean, Contrast(1, 2))
    assert not same.is_divided
    assert abs(same.clean - same.corrupt) < SMALLEST
    assert all(grid.count_unchanged == sum(map(len, grid.values)) for grid in same.grids)


def test_noise_is_put_on_the_named_tokens_only(clean):
    noisy = with_noise(clean, [2, 3])
    moved = (noisy.states[0] - clean.states[0]).abs().sum(-1) > 0
    assert moved.nonzero()[:, 0].tolist() == [2, 3]
    again = with_noise(clean, [2, 3])
    assert torch.equal(again.states, noisy.states)
    with pytest.raises(LabError, match="numbered 0 to 13"):
        with_noise(clean, [14])


# Circuits


def test_a_circuit_keeps_its_share_and_cannot_be_smaller(pair, clean):
    best, worst = int(clean.logits.argmax()), int(clean.logits.argmin())
    contrast = Contrast(best, worst)
    circuit = small_circuit(clean, contrast)
    shape = clean.decoder.architecture
    everything = [f"{n}.{h}" for n in range(shape.layers) for h in range(shape.heads)]
    everything += [f"{n}.mlp" for n in range(shape.layers)]
    assert circuit.total == len(everything)

    def left(kept):
        names = [name for name in everything if name not in kept]
        if not names:
            return circuit.difference
        parts = parse_parts(" ".join(names), shape)
        return effect_of(clean, contrast, means(clean, parts)).difference

    kept = set(circuit.parts)
    assert circuit.faithfulness >= 0.9
    assert circuit.faithfulness == pytest.approx(left(kept) / circuit.difference, abs=1e-3)
    without_it = left(set(everything) - kept) / circuit.difference
    assert circuit.completeness == pytest.approx(without_it, abs=1e-3)
    for part in kept:
        assert left(kept - {part}) / circuit.difference < 0.9 + 1e-3


def test_no_circuit_of_nothing(clean):
    with pytest.raises(LabError, match=r"a circuit is searched from 0\.5 on"):
        small_circuit(clean, Contrast(4, 4))


# While somebody waits


def test_what_progress_raises_ends_the_work(clean, contrast):
    class Stopped(Exception):
        pass

    def stop(done, total):
        assert 0 <= done <= total
        if done:
            raise Stopped

    corrupt = Reading(clean.decoder, CORRUPT)
    for work in (
        functools.partial(effects_of_all, clean, contrast),
        functools.partial(patch, clean, corrupt, contrast),
    ):
        with pytest.raises(Stopped):
            work(progress=stop)
