"""Attention: the formula, and the part of a block.

Invariant: states are float32, and positions before a window, or hidden by a mask, have weight 0:
their contents change no number.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from chatapp.engine.decoder.families.architecture import Architecture
from chatapp.engine.decoder.families.rotary import Rotary
from chatapp.engine.decoder.parts import Pass, Rotation
from chatapp.engine.kernels.linear import linear_layer
from chatapp.engine.kernels.native import Norm

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
