"""Attention with relative positions (Dai et al. 2019, Transformer-XL).

With query q of token i, key k of token j, the sinusoid R of the distance i - j, a matrix W, and two
biases u and v of each head:

    score = ((q + u)·k + (q + v)·(W R)) · scale
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from chatapp.engine.decoder.families.architecture import Architecture
from chatapp.engine.decoder.families.rotary import Rotary
from chatapp.engine.decoder.parts import Attention, Pass, Rotation, attention
from chatapp.engine.kernels.linear import linear_layer


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
    """All heads of one block, with the distances in the scores."""

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
