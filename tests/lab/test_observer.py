"""Every named point of a pass is looked at, and what an observer puts there is what goes on."""

from typing import Any

import pytest
import torch
from random_models import MakeGPT2
from torch import Tensor

from chatapp.engine.backends.local import load_decoder
from chatapp.engine.decoder.decoder import Decoder
from chatapp.engine.files.model_files import ModelFiles

IDS = [[(7 * n * n + 3) % 340 for n in range(20)], [(5 * n + 1) % 340 for n in range(20)]]


@pytest.fixture
def pair(make_gpt2: MakeGPT2) -> tuple[Decoder, Any]:
    folder, reference = make_gpt2(n_layer=3)
    return load_decoder(ModelFiles.read(folder)), reference


def points(layers: int, heads: int) -> dict[str, tuple[int, ...]]:
    """The shape of each point for two rows of twenty tokens, width 32."""
    states, head = (2, 20, 32), (2, 20, 32 // heads)
    each_head = (2, heads, 20, 32 // heads)
    shapes: dict[str, tuple[int, ...]] = {"positions": states, "embed": states}
    for layer in range(layers):
        name = f"blocks.{layer}"
        shapes |= {f"{name}.attention.{part}": each_head for part in ("query", "key", "value")}
        shapes |= {f"{name}.attention.head.{index}": head for index in range(heads)}
        neurons = {f"{name}.mlp.neurons": (2, 20, 4 * 32)}
        shapes |= {f"{name}.attention": states} | neurons | {f"{name}.mlp": states, name: states}
    return shapes | {"final": states}


def test_each_point_is_seen_once_in_order_and_nothing_changes(pair: tuple[Decoder, Any]) -> None:
    ours, _ = pair
    seen: list[tuple[str, tuple[int, ...]]] = []

    def look(point: str, value: Tensor) -> Tensor:
        seen.append((point, tuple(value.shape)))
        return value

    states = ours.hidden(IDS, observe=look)
    assert seen == list(points(3, 4).items())
    assert torch.equal(states, ours.hidden(IDS))


def test_what_is_seen_is_what_transformers_computes(pair: tuple[Decoder, Any]) -> None:
    ours, reference = pair
    seen: dict[str, Tensor] = {}
    ours.hidden(IDS, observe=lambda point, value: seen.setdefault(point, value))
    theirs: dict[str, Tensor] = {}
    for layer, block in enumerate(reference.transformer.h):
        for name, module in (("attention", block.attn), ("mlp", block.mlp)):

            def keep(_: Any, __: Any, output: Any, key: str = f"blocks.{layer}.{name}") -> None:
                theirs[key] = output[0] if isinstance(output, tuple) else output

            module.register_forward_hook(keep)
    with torch.no_grad():
        output = reference(torch.tensor(IDS), output_hidden_states=True)
    *early, last = output.hidden_states
    theirs |= {"embed": early[0], "final": last}
    theirs |= {f"blocks.{layer}": state for layer, state in enumerate(early[1:])}
    for point, value in theirs.items():
        assert torch.allclose(seen[point], value, atol=1e-4), point


@pytest.mark.parametrize("point", points(3, 4))
def test_what_is_put_at_a_point_goes_on(pair: tuple[Decoder, Any], point: str) -> None:
    ours, _ = pair
    before = ours.hidden(IDS)

    def patch(name: str, value: Tensor) -> Tensor:
        return 20 * value.flip(-1) if name == point else value

    after = ours.hidden(IDS, observe=patch)
    assert not torch.allclose(after, before, atol=1e-3)
    assert torch.equal(ours.hidden(IDS), before)


def test_an_ablated_head_is_one_whose_rows_of_the_projection_are_zero(
    pair: tuple[Decoder, Any],
) -> None:
    ours, reference = pair

    def ablate(name: str, value: Tensor) -> Tensor:
        return torch.zeros_like(value) if name == "blocks.1.attention.head.2" else value

    with torch.no_grad():
        reference.transformer.h[1].attn.c_proj.weight[16:24] = 0
        theirs = reference.transformer(torch.tensor(IDS)).last_hidden_state
    assert torch.allclose(ours.hidden(IDS, observe=ablate), theirs, atol=1e-4)


def test_with_a_cache_the_new_tokens_are_seen(pair: tuple[Decoder, Any]) -> None:
    ours, _ = pair
    cache = ours.new_cache()
    ours.forward(IDS[0][:15], cache)
    seen: dict[str, Tensor] = {}
    states = ours.hidden(
        [IDS[0][15:]], cache, observe=lambda point, value: seen.setdefault(point, value)
    )
    assert {value.shape[-2] for value in seen.values()} == {5}
    assert torch.allclose(states, ours.hidden([IDS[0]])[:, 15:], atol=1e-4)
