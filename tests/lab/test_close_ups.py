"""Close-ups show the numbers of transformers' own weights and hidden states, in every family."""

import numpy as np
import pytest
import torch
from family_shapes import START
from hooked import blocks_of, parts_of
from random_models import view_of

from chatapp.engine.decoder.interventions import Part
from chatapp.lab.views.close_up_views import Neighbours, Neurons, StateNeighbours, WeightSteps
from chatapp.lab.views.layer_views import Norms

IDS = [5, 17, 93, 200, 41, 5, 18, 77, 123, 4, 9, 31, 30, 21, 8, 7]


def output_of(reference):
    with torch.no_grad():
        return reference(
            torch.tensor([[START, *IDS]]), output_attentions=True, output_hidden_states=True
        )


def test_weights_step_by_step(pair):
    model, reference = pair
    attentions = output_of(reference).attentions
    for part in (Part(0, 1), Part(1, 0)):
        for position in (0, 6, len(IDS) - 1):
            steps = view_of(WeightSteps, model, IDS, str(part), at=position)
            row = attentions[part.layer][0, part.head, position + 1, : position + 2]
            shown = dict.fromkeys(range(-1, position + 1), 0.0)
            shown |= {key.position: key.weight for key in steps.keys}
            assert list(shown.values()) == pytest.approx(row.tolist(), abs=1e-4)
            assert steps.error < 1e-4
            scores = np.array([key.score for key in steps.keys])
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            assert weights == pytest.approx([key.weight for key in steps.keys], abs=1e-4)
            products = [key.product * steps.scale for key in steps.keys]
            assert scores == pytest.approx(products, abs=1e-4)


def test_norms_by_layer(pair):
    model, reference = pair
    seen = []
    blocks = blocks_of(reference)
    hook = blocks[-1].register_forward_hook(
        lambda _, __, out: seen.append(out[0] if isinstance(out, tuple) else out)
    )
    states = [state[0] for state in output_of(reference).hidden_states[:-1]]
    hook.remove()
    states.append(seen[0].view(-1, states[0].shape[-1]))
    norms = view_of(Norms, model, IDS, at=4)
    assert norms.stream == pytest.approx([float(s[5].norm()) for s in states], rel=1e-3)
    others = [1, 2, 3, 4]
    expected = [float(s[others].norm(dim=1).mean()) for s in states]
    assert norms.others == pytest.approx(expected, rel=1e-3)
    assert len(norms.attention) == len(norms.mlp) == len(blocks)


def test_neurons_and_what_they_promote(pair):
    model, reference = pair
    shape = model.decoder.architecture
    _, _, contract = parts_of(blocks_of(reference)[0])
    inputs = []
    last = []
    hooks = [
        contract.register_forward_pre_hook(lambda _, given: inputs.append(given[0])),
        blocks_of(reference)[-1].register_forward_hook(
            lambda _, __, out: last.append(out[0] if isinstance(out, tuple) else out)
        ),
    ]
    their_logits, at = output_of(reference).logits[0], 8
    for hook in hooks:
        hook.remove()
    activations = inputs[0].view(-1, shape.inner)[at + 1].detach()
    state = last[0].view(-1, shape.width)[at + 1].detach()
    ends = reference.get_output_embeddings().weight.detach()
    token, against = IDS[at + 1], int(their_logits[at + 1, : model.vocabulary].argmax())
    found = view_of(Neurons, model, IDS, "0.mlp", at=at, top=shape.inner)
    assert found.total == pytest.approx(found.share, abs=1e-3)

    base = reference.base_model
    final = getattr(base, "norm", None) or base.final_layer_norm

    def normed(norm, rows, whole):
        gamma = norm.weight.detach() + shape.norm_offset
        if shape.norm == "LayerNorm":
            scale = (whole.var(unbiased=False) + shape.epsilon).sqrt()
            return (rows - rows.mean(-1, keepdim=True)) * gamma / scale
        return rows * gamma / (whole.pow(2).mean() + shape.epsilon).sqrt()

    added = activations[:, None] * contract.weight.detach().T
    if shape.has_norms_after:
        norm = blocks_of(reference)[0].post_feedforward_layernorm
        added = normed(norm, added, added.sum(0))
    effects = normed(final, added, state) @ (ends[token] - ends[against])
    assert len(found.neurons) == shape.inner
    for neuron in found.neurons:
        number = int(neuron.name.split(".")[-1])
        assert neuron.activation == pytest.approx(float(activations[number]), abs=1e-4)
        assert neuron.effect == pytest.approx(float(effects[number]), abs=1e-3)
    sizes = [abs(neuron.effect) for neuron in found.neurons]
    assert sizes == sorted(sizes, reverse=True)
    number = int(found.neurons[0].name.split(".")[-1])
    logits = normed(final, added[[number]], state)[0] @ ends[: model.vocabulary].T
    best = model.piece(int(logits.argmax()))
    assert best in found.neurons[0].promotes


def test_neighbours_of_tokens_and_states(pair):
    model, reference = pair
    tables = [reference.get_input_embeddings().weight, reference.get_output_embeddings().weight]
    tables = [table.detach()[: model.vocabulary] for table in tables]
    found = view_of(Neighbours, model, IDS, "", at=IDS.index(17), top=5)
    state = output_of(reference).hidden_states[1][0, 4]
    near = view_of(StateNeighbours, model, IDS, "0", at=3, top=5)
    is_tied = model.decoder.architecture.is_tied
    assert bool(found.output) != is_tied
    for name, table in zip(("embedding", "output"), tables[: 2 - is_tied], strict=False):
        centred = table - table.mean(0)
        cosines = torch.cosine_similarity(centred, centred[17][None])
        cosines[17] = -2
        best = cosines.topk(5)
        rows = getattr(found, name)
        assert [row.cosine for row in rows] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert 17 not in [row.id for row in rows]
        of_state = torch.cosine_similarity(centred, state[None]).topk(5)
        shown = [row.cosine for row in getattr(near, name)]
        assert shown == pytest.approx(of_state.values.tolist(), abs=1e-4)
