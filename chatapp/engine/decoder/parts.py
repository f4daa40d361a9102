"""Parts of decoders: activations, norms, MLPs, rotations, and the state of a pass.

Invariant: this module depends on no family. States are float32, whatever the type of the matrices.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from chatapp.engine.decoder.families.architecture import Activation, Architecture
from chatapp.engine.decoder.families.rotary import Rotary
from chatapp.engine.decoder.observer import Observer
from chatapp.engine.kernels.linear import linear_layer
from chatapp.engine.kernels.native import Norm
from chatapp.engine.kernels.native_layers import Rows

# √(8/π), and the number of elements from which computing a gelu in steps pays.
_GELU = (8 / torch.pi) ** 0.5
_STEPS_FROM = 2**16


def _tanh_gelu(x: Tensor) -> Tensor:
    """½x(1 + tanh u) with u = √(2/π)(x + 0.044715x³): the approximation of a gelu.

    On a CPU, torch's sigmoid is several times as fast as its tanh, and ½(1 + tanh u) is the sigmoid
    of 2u.
    """
    if x.device.type != "cpu" or x.numel() < _STEPS_FROM or x.requires_grad:
        return F.gelu(x, approximate="tanh")
    doubled = torch.addcmul(torch.tensor(_GELU), x, x, value=0.044715 * _GELU).mul_(x)
    return doubled.sigmoid_().mul_(x)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu_new": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
}


class KeyValues(Protocol):
    """The storage of keys and values of the tokens so far."""

    def extend(self, layer: int, new: Tensor) -> tuple[Tensor, Tensor]:
        """See `KeyValueCache.extend`."""
        ...


@dataclass(frozen=True, slots=True)
class Pass:
    """The inputs of each block in one forward pass, in addition to the states (rows · tokens,
    width).

    rows: sequences of one length. turns: the cosines and sines of each rotation at the positions of
    the tokens. masks: for each window of a block, (tokens, all), or (rows, 1, tokens, all) where
    each row has its own, added to the attention's scores; None where each token sees itself and all
    before it. distances: from each key to each token, (tokens, all) or (rows, tokens, all), where
    they are not simply those in a text. native: the same for the native kernels, where they
    compute the blocks; else None.
    """

    rows: int
    turns: Mapping["Rotation", tuple[Tensor, Tensor]]
    cache: KeyValues | None = None
    masks: Mapping[int | None, Tensor] | None = None
    observe: Observer | None = None
    native: Rows | None = None
    distances: Tensor | None = None

    def observed(self, point: str, x: Tensor) -> Tensor:
        """The states, or an update of them, after the observer."""
        if self.observe is None:
            return x
        return self.observe(point, x.view(self.rows, -1, x.shape[-1])).reshape(x.shape)

    def observed_heads(self, point: str, mixed: Tensor) -> Tensor:
        """The output of the heads, (rows, heads, tokens, head size), after the observer.

        point: of the attention that the heads belong to.
        """
        if self.observe is None:
            return mixed
        heads = enumerate(mixed.unbind(1))
        return torch.stack([self.observe(f"{point}.head.{n}", head) for n, head in heads], 1)


class LayerNorm:
    """Layer normalization over the last dimension."""

    __slots__ = ("bias", "epsilon", "shape", "struct", "weight")

    def __init__(self, weight: Tensor, bias: Tensor, epsilon: float) -> None:
        self.weight, self.bias = weight, bias
        self.struct = Norm(weight.data_ptr(), bias.data_ptr(), epsilon)
        self.shape = weight.shape
        self.epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.shape, self.weight, self.bias, self.epsilon)


class RMSNorm:
    """x / √(mean(x²) + ε) · weight over the last dimension (Zhang and Sennrich 2019)."""

    __slots__ = ("epsilon", "struct", "weight")

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self.weight = weight
        self.struct = Norm(weight.data_ptr(), None, epsilon)
        self.epsilon = torch.tensor(epsilon, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        # Written in steps: on a CPU, torch's rms_norm needs twice as many.
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        factor = torch.addcmul(self.epsilon, length, length, value=1 / x.shape[-1]).rsqrt_()
        return (x * factor).mul_(self.weight)


def make_norm(
    weights: Mapping[str, Tensor], name: str, architecture: Architecture
) -> LayerNorm | RMSNorm:
    """The norm with this name, of the architecture's kind."""
    weight = weights[f"{name}.weight"]
    if architecture.norm == "LayerNorm":
        return LayerNorm(weight, weights[f"{name}.bias"], architecture.epsilon)
    return RMSNorm(weight + architecture.norm_offset, architecture.epsilon)


class MLP:
    """act(x U + b) D + c, or with a gate, (act(x G) ∘ (x U)) D; G and U are stacked."""

    def __init__(
        self, weights: Mapping[str, Tensor], name: str, architecture: Architecture
    ) -> None:
        self.point = name
        self.expand = linear_layer(weights, f"{name}.expand")
        self.contract = linear_layer(weights, f"{name}.contract")
        self.activation = ACTIVATIONS[architecture.activation]
        self.is_gated = architecture.is_gated

    def __call__(self, x: Tensor, run: Pass) -> Tensor:
        inner = self.expand(x)
        if self.is_gated:
            gate, up = inner.chunk(2, -1)
            neurons = self.activation(gate).mul_(up)
        else:
            neurons = self.activation(inner)
        return self.contract(run.observed(f"{self.point}.neurons", neurons))


class Rotation:
    """Rotates pairs of components by their token's position; see `rotary`."""

    def __init__(self, rotary: Rotary, device: torch.device) -> None:
        # In float32, as in transformers, so as in training.
        exponents = torch.arange(0, rotary.size, 2).float() / rotary.size
        frequencies = 1.0 / rotary.base**exponents
        if rotary.scaling is not None:
            frequencies = rotary.scaling(frequencies)
        self._frequencies = frequencies.to(device)
        self._magnitude = rotary.magnitude
        self._kept = self._cosines_and_sines(torch.arange(0, device=device))
        self.size = rotary.size

    def turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines, and sines negated in the first half: (…, 1, size) each.

        positions: (tokens,), or (rows, tokens) where each row has its own.
        """
        cosines, sines = (part[..., None, :] for part in self._cosines_and_sines(positions))
        return torch.cat((cosines, cosines), -1), torch.cat((-sines, sines), -1)

    def kept(self, positions: Tensor, span: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines (tokens, size / 2) of positions (tokens,) below `span`, which are
        computed once for all tokens.
        """
        known = self._kept[0].shape[0]
        if span > known:
            every = torch.arange(max(span, 2 * known), device=self._frequencies.device)
            self._kept = self._cosines_and_sines(every)
        cosines, sines = (part.index_select(0, positions) for part in self._kept)
        return cosines, sines

    def _cosines_and_sines(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(…, size / 2) each. positions: (…)."""
        angles = positions[..., None].float() * self._frequencies
        return angles.cos().mul_(self._magnitude), angles.sin().mul_(self._magnitude)

    def turn(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> None:
        """Rotate x, (rows, tokens, heads, head size), in place.

        The pair (a, b) becomes (a cos − b sin, b cos + a sin).
        """
        cosines, sines = turns
        x = x[..., : self.size]
        others = x.roll(self.size // 2, -1)
        x.mul_(cosines).addcmul_(others, sines)
