"""What is shown of every family is what transformers computes, and each point can be changed."""

from typing import Any

import pytest
import torch
from family_shapes import SHAPES, make_family
from torch import Tensor

from chatapp.engine.backends.local import load_decoder
from chatapp.engine.decoder.decoder import Decoder
from chatapp.engine.files.model_files import ModelFiles
from chatapp.lab.traces import DecoderTrace

IDS = torch.randint(0, 340, (60,), generator=torch.Generator().manual_seed(1)).tolist()

Pair = tuple[Decoder, Any]


@pytest.fixture(scope="module", params=SHAPES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("family")
    reference = make_family(request.param, folder)
    reference.set_attn_implementation("eager")
    return load_decoder(ModelFiles.read(folder)), reference


def points(decoder: Decoder) -> dict[str, tuple[int, ...]]:
    """The shape of each point for one row."""
    shape, size = decoder.architecture, len(IDS)
    states, head = (1, size, shape.width), (1, size, shape.head_size)
    of_keys = (1, shape.key_value_heads, size, shape.head_size)
    shapes: dict[str, tuple[int, ...]] = {"embed": states}
    for layer in range(shape.layers):
        name = f"blocks.{layer}"
        shapes[f"{name}.attention.query"] = (1, shape.heads, size, shape.head_size)
        shapes |= {f"{name}.attention.key": of_keys, f"{name}.attention.value": of_keys}
        shapes |= {f"{name}.attention.head.{index}": head for index in range(shape.heads)}
        neurons = {f"{name}.mlp.neurons": (1, size, shape.inner)}
        shapes |= {f"{name}.attention": states} | neurons | {f"{name}.mlp": states, name: states}
    return shapes | {"final": states}


def test_attention_weights_and_what_layers_predict(pair: Pair) -> None:
    ours, reference = pair
    trace = DecoderTrace(ours, IDS, str)
    with torch.no_grad():
        output = reference(torch.tensor([IDS]), output_attentions=True, output_hidden_states=True)
        norm = getattr(reference.base_model, "norm", None) or reference.base_model.final_layer_norm
        *early, last = output.hidden_states
        states = [*(norm(state[0]) for state in early), last[0]]
        lens = torch.stack([reference.get_output_embeddings()(state) for state in states])
    cap = ours.architecture.logit_cap
    lens = lens if cap is None else torch.tanh(lens / cap) * cap
    theirs = torch.stack(output.attentions)[:, 0]
    assert torch.allclose(torch.from_numpy(trace.attentions()), theirs, atol=1e-4)
    assert torch.allclose(trace.logits(0, len(IDS)), output.logits[0], atol=1e-4)
    for position in (0, 20, len(IDS) - 1):
        assert torch.allclose(trace.layer_logits(position), lens[:, position], atol=1e-4)


def test_each_point_is_seen_once_in_order_and_nothing_changes(pair: Pair) -> None:
    ours, _ = pair
    seen: list[tuple[str, tuple[int, ...]]] = []

    def look(point: str, value: Tensor) -> Tensor:
        seen.append((point, tuple(value.shape)))
        return value

    states = ours.hidden([IDS], observe=look)
    assert seen == list(points(ours).items())
    assert torch.equal(states, ours.hidden([IDS]))


def test_what_is_added_to_the_states_is_what_they_become(pair: Pair) -> None:
    ours, _ = pair
    seen: dict[str, Tensor] = {}
    ours.hidden([IDS], observe=lambda point, value: seen.setdefault(point, value))
    before = seen["embed"]
    for layer in range(ours.architecture.layers):
        name = f"blocks.{layer}"
        added = seen[f"{name}.attention"] + seen[f"{name}.mlp"]
        assert torch.allclose(before + added, seen[name], atol=1e-5)
        before = seen[name]


def test_what_is_put_at_a_point_goes_on(pair: Pair) -> None:
    ours, _ = pair
    before = ours.hidden([IDS])
    for point in points(ours):

        def patch(name: str, value: Tensor, at: str = point) -> Tensor:
            return 20 * value.flip(-1) if name == at else value

        after = ours.hidden([IDS], observe=patch)
        # A window of one leaves queries and keys without a say.
        if 1 in ours.windows and point.endswith((".query", ".key")):
            assert torch.equal(after, before)
        else:
            assert not torch.allclose(after, before, atol=1e-3), point
    assert torch.equal(ours.hidden([IDS]), before)
