"""Parts that decoders are made of: activations, norms, attention, and what a pass carries.

Keep: this file knows tensors only, and no family. States are float32 whatever the matrices are
stored as.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from chatapp.engine.decoder.observer import Observer

# √(8/π), and from how many numbers on it pays to compute a gelu in steps.
_GELU = (8 / torch.pi) ** 0.5
_STEPS_FROM = 2**16

# Rows whose attention a CPU computes at once: each is multiplied by all keys up to those of the
# last one. A GPU would rather have few calls.
ROWS_AT_ONCE = 128


def _tanh_gelu(x: Tensor) -> Tensor:
    """½x(1 + tanh u) with u = √(2/π)(x + 0.044715x³): the approximation of a gelu.

    On a CPU, torch's sigmoid is several times as fast as its tanh, and ½(1 + tanh u) is the
    sigmoid of 2u.
    """
    if x.device.type != "cpu" or x.numel() < _STEPS_FROM:
        return F.gelu(x, approximate="tanh")
    doubled = torch.addcmul(torch.tensor(_GELU), x, x, value=0.044715 * _GELU).mul_(x)
    return doubled.sigmoid_().mul_(x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "gelu": F.gelu,
    "relu": F.relu,
}


class KeyValues(Protocol):
    """Where keys and values of the tokens so far are."""

    def extend(self, layer: int, new: Tensor) -> tuple[Tensor, Tensor]:
        """See `KeyValueCache.extend`."""
        ...


@dataclass(frozen=True, slots=True)
class Pass:
    """What each block of one forward pass is given beside the states (rows · tokens, width).

    rows: sequences of one length. mask: (tokens, all), added to the attention's scores; None
    where each token sees itself and all before it.
    """

    rows: int
    cache: KeyValues | None = None
    mask: Tensor | None = None
    observe: Observer | None = None

    def observed(self, point: str, x: Tensor) -> Tensor:
        """States, or what is added to them, as the observer leaves them."""
        if self.observe is None:
            return x
        return self.observe(point, x.view(self.rows, -1, x.shape[-1])).reshape(x.shape)

    def observed_heads(self, point: str, mixed: Tensor) -> Tensor:
        """What heads make of the values, (rows, heads, tokens, head size), as it leaves it.

        point: of the attention that the heads belong to.
        """
        if self.observe is None:
            return mixed
        heads = enumerate(mixed.unbind(1))
        return torch.stack([self.observe(f"{point}.head.{n}", head) for n, head in heads], 1)


class LayerNorm:
    """Layer normalisation over the last dimension."""

    __slots__ = ("bias", "epsilon", "shape", "weight")

    def __init__(self, weights: Mapping[str, Tensor], name: str, epsilon: float) -> None:
        self.weight = weights[f"{name}.weight"]
        self.bias = weights[f"{name}.bias"]
        self.shape = self.weight.shape
        self.epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.shape, self.weight, self.bias, self.epsilon)


def attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None
) -> Tensor:
    """softmax(q kᵀ · scale) v of the last positions.

    query: (rows, heads, new, head size). key, value: (rows, heads, all, head size). mask: see
    `Pass`. Returns (rows, heads, new, head size).
    """
    if mask is None and query.shape[2] > 1:
        return _causal_attention(query, key, value, scale)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


def attention_weights(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """softmax(q kᵀ · scale): (…, new, all), where each new position sees all keys."""
    return (query @ key.transpose(-2, -1) * scale).softmax(-1)


def _causal_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """`attention`, in which each position sees itself and all before it."""
    new, total = query.shape[2], key.shape[2]
    rows = min(new, ROWS_AT_ONCE) if query.device.type == "cpu" else new
    # What stands before the rows is seen by each of them.
    later = torch.full((rows, rows), -torch.inf, device=query.device).triu_(1)
    mask = F.pad(later, (total, 0))
    mixed = []
    for start in range(0, new, rows):
        stop = min(start + rows, new)
        visible = total - new + stop
        mixed.append(
            F.scaled_dot_product_attention(
                query[:, :, start:stop],
                key[:, :, :visible],
                value[:, :, :visible],
                attn_mask=mask[: stop - start, new - start :][:, :visible],
                scale=scale,
            )
        )
    return torch.cat(mixed, 2)
