"""The parts of decoders (activations, norms, MLPs, rotations, attention, the state of a pass), and
the named points at which a pass is observed and changed:

    positions                   the embeddings of positions, where there are some
                                                                        (rows, tokens, width)
    embed                       the embeddings of tokens and positions      (rows, tokens, width)
    blocks.3.attention.query    with positions         (rows, heads, tokens, head size)
    blocks.3.attention.key      with positions         (rows, key/value heads, tokens, head size)
    blocks.3.attention.value                           (rows, key/value heads, tokens, head size)
    blocks.3.attention.head.5   what a head makes of the values, unprojected
                                                       (rows, tokens, head size)
    blocks.3.attention          what attention adds to the residual stream  (rows, tokens, width)
    blocks.3.mlp.neurons        what the activation gives, times the gate   (rows, tokens, inner)
    blocks.3.mlp                what the MLP adds to it              (rows, tokens, width)
    blocks.3                    the residual stream after the block         (rows, tokens, width)
    final                       after the final norm                        (rows, tokens, width)

Blocks and heads count from 0; with a cache, the tokens are the new ones.

Invariants: this module depends on no family. States are float32, whatever the type of the matrices.
Positions before a window, or hidden by a mask, have weight 0: their contents change no number. An
observer that returns its input changes no number, and a pass without one does no extra work.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from chatapp.engine.decoder.families.architecture import Activation, Architecture
from chatapp.engine.decoder.families.rotary import Rotary
from chatapp.engine.decoder.interventions import Change, Interventions
from chatapp.engine.kernels.linear import linear_layer
from chatapp.engine.kernels.native import Norm
from chatapp.engine.kernels.native_layers import TokenRows


class Observer(Protocol):
    """A callback at each point of a pass, in the order of the pass."""

    def __call__(self, point: str, value: Tensor) -> Tensor:
        """Return `value`, not changed in place, or a replacement of its shape."""
        ...


class Changer:
    """An observer that makes the changes of `Interventions`.

    at: (tokens,) the positions of the tokens of the pass.
    """

    def __init__(self, interventions: Interventions, at: Tensor) -> None:
        self._at = at
        self._changes: dict[str, list[Change]] = {}
        for change in interventions.changes:
            self._changes.setdefault(change.point, []).append(change)

    def __call__(self, point: str, value: Tensor) -> Tensor:
        for change in self._changes.get(point, ()):
            value = self._changed(change, value)
        return value

    def _changed(self, change: Change, value: Tensor) -> Tensor:
        """value: (rows, tokens, size)."""
        stop = torch.inf if change.stop is None else change.stop
        is_reached = ((self._at >= change.start) & (self._at < stop))[:, None]
        columns = slice(None) if change.component is None else [change.component]
        before = value[..., columns]
        new = torch.zeros((), device=value.device)
        if change.vector is not None:
            new = torch.tensor(change.vector, device=value.device)
        after = value.clone()
        after[..., columns] = torch.where(
            is_reached, before + new if change.is_added else new, before
        )
        return after


def together(observers: Sequence[Observer | None]) -> Observer | None:
    """One observer for several, of which the later ones see what the earlier ones have put."""
    present = [observer for observer in observers if observer is not None]
    if len(present) < 2:
        return present[0] if present else None

    def observe(point: str, value: Tensor) -> Tensor:
        for observer in present:
            value = observer(point, value)
        return value

    return observe


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
    native: TokenRows | None = None
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

    def kept(self, span: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines (positions, size / 2) of at least the positions below `span`, which are
        computed once.
        """
        known = self._kept[0].shape[0]
        if span > known:
            every = torch.arange(max(span, 2 * known), device=self._frequencies.device)
            self._kept = self._cosines_and_sines(every)
        return self._kept

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


# Rows whose attention a CPU computes at once: each is multiplied by all keys up to those of the
# last one. A GPU needs few calls instead.
ROWS_AT_ONCE = 128


class Attention:
    """All heads of one block, projected.

    Consecutive heads share keys and values if there are fewer of these.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        architecture: Architecture,
        layer: int,
        rotations: Mapping[Rotary, Rotation],
    ) -> None:
        self.layer = layer
        self.point = name = f"blocks.{layer}.attention"
        kind = architecture.attentions[layer]
        self.scale, self.window = kind.scale, kind.window
        self.rotation = None if kind.rotary is None else rotations[kind.rotary]
        self.heads, self.key_value_heads = architecture.heads, architecture.key_value_heads
        self.head_size = architecture.head_size
        self.query_key_value = linear_layer(weights, f"{name}.query_key_value")
        self.projection = linear_layer(weights, f"{name}.projection")
        self.all_heads = self.heads + 2 * self.key_value_heads
        self.turned = self.heads + self.key_value_heads
        self.norm = None
        if architecture.has_query_key_norm:
            self.norm = QueryKeyNorm(weights, name, architecture)

    def __call__(self, x: Tensor, run: Pass) -> Tensor:
        """x: (rows · tokens, width), as what is returned."""
        query, new = self.split(x, run)
        if run.observe is not None:
            query = run.observe(f"{self.point}.query", query)
            parts = zip(("key", "value"), new, strict=True)
            new = torch.stack([run.observe(f"{self.point}.{name}", part) for name, part in parts])
        key, value = new if run.cache is None else run.cache.extend(self.layer, new)
        mixed = self.mixed(query, key, value, run)
        mixed = run.observed_heads(self.point, mixed)
        return self.projection(mixed.transpose(1, 2).reshape(len(x), -1))

    def mixed(self, query: Tensor, key: Tensor, value: Tensor, run: Pass) -> Tensor:
        """The heads' outputs (rows, heads, tokens, head size); see `attention`."""
        mask = None if run.masks is None else run.masks[self.window]
        return attention(query, key, value, self.scale, mask, self.window)

    def split(self, x: Tensor, run: Pass) -> tuple[Tensor, Tensor]:
        """Compute queries (rows, heads, tokens, head size), and the keys and values of the tokens,
        (2, rows, key/value heads, tokens, head size), with positions.
        """
        # (rows · tokens, components of all) -> (rows, tokens, heads of all three, head size)
        split = self.query_key_value(x).view(run.rows, -1, self.all_heads, self.head_size)
        if self.norm is not None:
            self.norm(split[:, :, : self.turned])
        if self.rotation is not None:
            self.rotation.turn(split[:, :, : self.turned], run.turns[self.rotation])
        query, new = split[:, :, : self.heads], split[:, :, self.heads :]
        new = new.view(*new.shape[:2], 2, self.key_value_heads, self.head_size)
        return query.transpose(1, 2), new.permute(2, 0, 3, 1, 4)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """softmax(q kᵀ · scale) of the last positions, (…, heads, new, keys).

        query: (…, heads, new, head size). key: (…, key/value heads, keys, head size), up to the
        last position. Later keys, and those before the window, have a weight of 0.
        """
        new, keys = query.shape[-2], key.shape[-2]
        grouped = query.reshape(*key.shape[:-2], -1, self.head_size)
        scores = grouped @ key.transpose(-2, -1) * self.scale
        scores = scores.view(*query.shape[:-1], keys)
        hidden = torch.ones(new, keys, dtype=torch.bool, device=query.device).triu(1 + keys - new)
        if self.window is not None:
            hidden |= torch.ones_like(hidden).tril(keys - new - self.window)
        return scores.masked_fill(hidden, -torch.inf).softmax(-1)


class QueryKeyNorm:
    """An RMSNorm of each head's query, and one of each key."""

    __slots__ = ("epsilon", "structs", "weight")

    def __init__(
        self, weights: Mapping[str, Tensor], name: str, architecture: Architecture
    ) -> None:
        query, key = weights[f"{name}.query_norm.weight"], weights[f"{name}.key_norm.weight"]
        # One row per head: (heads + key/value heads, head size).
        heads = (architecture.heads, architecture.key_value_heads)
        both = torch.cat([w.expand(n, -1) for w, n in zip((query, key), heads, strict=True)])
        self.weight = both + architecture.norm_offset
        self.epsilon = architecture.epsilon
        # The rows of one kind are equal: those of the first query and of the first key.
        first = (self.weight[0], self.weight[architecture.heads])
        self.structs = tuple(Norm(row.data_ptr(), None, self.epsilon) for row in first)

    def __call__(self, x: Tensor) -> None:
        """x: (rows, tokens, heads + key/value heads, head size), in place."""
        if x.requires_grad:  # a gradient needs x as it was
            x.copy_(F.rms_norm(x.clone(), x.shape[-1:], None, self.epsilon) * self.weight)
            return
        torch.mul(F.rms_norm(x, x.shape[-1:], None, self.epsilon), self.weight, out=x)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    mask: Tensor | None,
    window: int | None = None,
) -> Tensor:
    """softmax(q kᵀ · scale) v of the last positions.

    query: (rows, heads, new, head size). key, value: (rows, key/value heads, all, head size). mask:
    (new, all), or (rows, 1, new, all), added to the scores; None where each position sees itself
    and all before it, within the window. Returns (rows, heads, new, head size).
    """
    if mask is not None:
        return _attend(query, key, value, scale, mask)
    if query.shape[2] > 1:
        return _causal_attention(query, key, value, scale, window)
    if window is not None:
        key, value = key[:, :, -window:], value[:, :, -window:]
    return _attend(query, key, value, scale, None)


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """`attention` with a mask and nothing else."""
    heads, shared = query.shape[1], key.shape[1]
    if heads == shared:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    # To heads that share keys, more heads are like more tokens.
    together = query.reshape(len(query), shared, -1, query.shape[-1])
    if mask is not None:
        mask = mask.repeat(*[1] * (mask.ndim - 2), heads // shared, 1)
    mixed = F.scaled_dot_product_attention(together, key, value, attn_mask=mask, scale=scale)
    return mixed.view(query.shape)


def _causal_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None
) -> Tensor:
    """`attention` without a mask."""
    new, total = query.shape[2], key.shape[2]
    rows = min(new, ROWS_AT_ONCE) if query.device.type == "cpu" else new
    seen = total if window is None else min(window, total)
    # Row i of these sees the columns i to i + seen - 1, the last of which is its own.
    everything = torch.full((rows, seen - 1 + rows), -torch.inf, device=query.device)
    mask = everything.triu(seen)
    if window is not None:
        mask += everything.tril(-1)
    mixed = []
    for start in range(0, new, rows):
        stop = min(start + rows, new)
        first, visible = total - new + start - (seen - 1), total - new + stop
        hidden, first = max(0, -first), max(0, first)
        mixed.append(
            _attend(
                query[:, :, start:stop],
                key[:, :, first:visible],
                value[:, :, first:visible],
                scale,
                mask[: stop - start, hidden : seen - 1 + stop - start],
            )
        )
    return torch.cat(mixed, 2)


def within(window: int | None, mask: Tensor, positions: Tensor, keys: Tensor) -> Tensor:
    """A mask that also hides the positions before the window.

    mask: (new, all), added to scores. positions: (new,). keys: (all,), the positions of keys.
    """
    if window is None:
        return mask
    return mask.masked_fill(positions[:, None] - keys >= window, -torch.inf)


def sinusoids(count: int, width: int, device: torch.device) -> Tensor:
    """R of the distances 0 to count - 1: sines, then cosines, (count, width)."""
    exponents = torch.arange(0, width, 2, device=device).float() / width
    angles = torch.arange(count, device=device).float()[:, None] / 10000**exponents
    return torch.cat((angles.sin(), angles.cos()), -1)


def distances_between(positions: Tensor, keys: Tensor) -> Tensor:
    """i - j, (…, tokens, keys); below 0 for later keys. positions: (…, tokens)."""
    return positions[..., None] - keys


def _in_a_text(new: int, key: Tensor) -> Tensor:
    """The distances of the last `new` of the tokens of `key`, (…, tokens, head size)."""
    at = torch.arange(key.shape[-2], device=key.device)
    return distances_between(at[len(at) - new :], at)


class RelativeAttention(Attention):
    """All heads of one block, with the distances in the scores (Dai et al. 2019, Transformer-XL).

    With query q of token i, key k of token j, the sinusoid R of the distance i - j, a matrix W, and
    two biases u and v of each head:

        score = ((q + u)·k + (q + v)·(W R)) · scale
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        architecture: Architecture,
        layer: int,
        rotations: Mapping[Rotary, Rotation],
    ) -> None:
        super().__init__(weights, architecture, layer, rotations)
        self._u, self._v = (
            weights[f"{self.point}.biases.{name}"].float()[:, None]
            for name in ("r_w_bias", "r_r_bias")
        )
        assert architecture.farthest is not None
        self._farthest, self._width = architecture.farthest, architecture.width
        self._distances = linear_layer(weights, f"{self.point}.distances")
        self._known = torch.empty(0)

    def mixed(self, query: Tensor, key: Tensor, value: Tensor, run: Pass) -> Tensor:
        distances = run.distances
        if distances is None:
            if self.window is not None:  # what comes before is not seen
                seen = self.window + query.shape[-2] - 1
                key, value = key[..., -seen:, :], value[..., -seen:, :]
            distances = _in_a_text(query.shape[-2], key)
        bias = self._of_distances(query, distances)
        if run.masks is None:
            bias = bias.masked_fill(self._hidden(distances), -torch.inf)
        else:
            bias = bias + run.masks[self.window]
        return attention(query + self._u, key, value, self.scale, bias)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """See `Attention.weights`."""
        distances = _in_a_text(query.shape[-2], key)
        scores = (query + self._u) @ key.transpose(-2, -1) * self.scale
        scores = scores + self._of_distances(query, distances)
        return scores.masked_fill(self._hidden(distances), -torch.inf).softmax(-1)

    def _hidden(self, distances: Tensor) -> Tensor:
        """Whether a key is later than a token, or before its window."""
        hidden = distances < 0
        return hidden if self.window is None else hidden | (distances >= self.window)

    def _of_distances(self, query: Tensor, distances: Tensor) -> Tensor:
        """(q + v)·(W R) · scale of each pair, (…, heads, tokens, keys)."""
        places = distances.clamp(0, self._farthest)
        known = self._projected(int(places.max()) + 1)
        # Every distance once, then each pair's.
        scores = (query + self._v) @ known.transpose(-2, -1) * self.scale
        places = places if places.ndim == 2 else places[:, None]
        return scores.gather(-1, places.long().expand(*scores.shape[:-1], places.shape[-1]))

    def _projected(self, count: int) -> Tensor:
        """W R of the distances below `count`, (heads, count, head size); computed once."""
        if len(self._known) == 0 or self._known.shape[1] < count:
            size = min(self._farthest + 1, 2 * count)
            states = sinusoids(size, self._width, self._u.device)
            projected = self._distances(states).view(size, self.heads, self.head_size)
            self._known = projected.transpose(0, 1)
        return self._known[:, :count]
