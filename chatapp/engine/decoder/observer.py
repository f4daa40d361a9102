"""Looking into a forward pass, and changing it, at named points.

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

Invariant: an observer that returns its input changes no number, and a pass without one does
no extra work.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from chatapp.engine.decoder.interventions import Change, Interventions


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
