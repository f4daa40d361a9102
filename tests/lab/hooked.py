"""transformers' models with parts changed by hooks: what our own changes are compared with.

Invariant: nothing here uses chatapp's decoder.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def blocks_of(model: Any) -> Any:
    """The blocks of transformers' model, first to last."""
    inside = model.base_model
    return inside.h if hasattr(inside, "h") else inside.layers


def parts_of(block: Any) -> tuple[Any, Any, Any]:
    """Of a block: what projects the heads, the MLP, and what projects the MLP's neurons."""
    attention = next(
        getattr(block, name) for name in ("self_attn", "attention", "attn") if hasattr(block, name)
    )
    projection = next(
        getattr(attention, name)
        for name in ("o_proj", "dense", "c_proj")
        if hasattr(attention, name)
    )
    contract = next(
        getattr(block.mlp, name)
        for name in ("down_proj", "dense_4h_to_h", "c_proj")
        if hasattr(block.mlp, name)
    )
    return projection, block.mlp, contract


Undo = Callable[[], None]


def _zero_inputs(module: Any, columns: slice) -> Undo:
    def change(_: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x = given[0].clone()
        x[..., columns] = 0
        return (x, *given[1:])

    return module.register_forward_pre_hook(change).remove


def _zero_output(module: Any) -> Undo:
    def change(_: Any, __: Any, output: Tensor) -> Tensor:
        return torch.zeros_like(output)

    return module.register_forward_hook(change).remove


@contextmanager
def without(model: Any, *names: str) -> Iterator[None]:
    """transformers' model without heads (`1.2`), MLPs (`1.mlp`), neurons (`1.mlp.7`)."""
    undo: list[Undo] = []
    for name in names:
        layer, *rest = name.split(".")
        block = blocks_of(model)[int(layer)]
        projection, mlp, contract = parts_of(block)
        if rest[0] == "mlp" and len(rest) == 1:
            undo.append(_zero_output(getattr(block, "post_feedforward_layernorm", mlp)))
        elif rest[0] == "mlp":
            neuron = int(rest[1])
            undo.append(_zero_inputs(contract, slice(neuron, neuron + 1)))
        else:
            heads = model.config.num_attention_heads
            size = getattr(model.config, "head_dim", None) or model.config.hidden_size // heads
            start = int(rest[0]) * size
            undo.append(_zero_inputs(projection, slice(start, start + size)))
    try:
        yield
    finally:
        for remove in undo:
            remove()
