"""Keys and values of several sequences that go on together, one a row.

Keep: row n holds the `lengths[n]` tokens of its sequence from position 0 on. What lies after them,
as far as the longest row goes, is multiplied by 0, and so has to be finite.
"""

import torch
from torch import Tensor

from chatapp.engine.cache import KeyValueCache

# Positions made finite at once: on a CPU, what nobody has written to takes no memory.
_STRETCH = 64


class RowCache:
    """The first rows are in use.

    like: a cache of the model, for the shape of its keys and values. rows, positions: the most
    sequences, and the longest, that it has room for.
    lengths: tokens in each row that is in use.
    """

    def __init__(self, like: KeyValueCache, rows: int, positions: int) -> None:
        _, _, heads, _, size = like.layers[0].shape
        shape = (len(like.layers), 2, rows, heads, positions, size)
        self.layers = torch.empty(shape, device=like.layers[0].device).unbind(0)
        self.rows, self.positions = rows, positions
        self.lengths: list[int] = []
        self._finite = 0
        # Of the tokens that are being computed.
        self._rows = self._at = torch.zeros(0)

    def put(self, row: int, cache: KeyValueCache) -> None:
        """Hold in a row, a new one or another sequence's, all that a cache holds."""
        size = len(cache)
        self._reach(size)
        for layer, other in zip(self.layers, cache.layers, strict=True):
            self._write(layer, row, other[:, 0, :, :size])
        self.lengths[row : row + 1] = [size]

    def remove(self, row: int) -> None:
        """Give a row up; the last one takes its place."""
        size = self.lengths.pop()
        last = len(self.lengths)
        if row == last:
            return
        for layer in self.layers:
            self._write(layer, row, layer[:, last, :, :size])
        self.lengths[row] = size

    def clear(self) -> None:
        """Give all rows up."""
        self.lengths.clear()

    def begin(self) -> tuple[Tensor, Tensor]:
        """Make room for one more token in each row.

        Returns their positions (rows in use,) and those of all keys (keys,).
        """
        self._reach(max(self.lengths) + 1)
        device = self.layers[0].device
        self._rows = torch.arange(len(self.lengths), device=device)
        self._at = torch.tensor(self.lengths, device=device)
        return self._at, torch.arange(max(self.lengths) + 1, device=device)

    def extend(self, layer: int, new: Tensor) -> tuple[Tensor, Tensor]:
        """Write the keys and values of the tokens that `begin` made room for.

        new: (2, rows in use, heads, 1, head size), the keys and then the values.
        Returns all keys and all values of these rows, as far as the longest goes.
        """
        held = self.layers[layer]
        # Indices apart from one another come first: (rows in use, 2, heads, head size).
        held[:, self._rows, :, self._at] = new.squeeze(3).transpose(0, 1)
        in_use = held[:, : len(self.lengths), :, : max(self.lengths) + 1]
        keys, values = in_use.unbind(0)
        return keys, values

    def commit(self) -> None:
        """Every layer has been extended."""
        self.lengths = [length + 1 for length in self.lengths]

    def _write(self, layer: Tensor, row: int, held: Tensor) -> None:
        """held: (2, heads, tokens, head size)."""
        size = held.shape[2]
        layer[:, row, :, :size] = held
        # A sequence that went wrong may have left what is no number.
        layer[:, row, :, size : self._finite] = 0

    def _reach(self, positions: int) -> None:
        if positions > self._finite:
            stretch = max(positions, min(self._finite + _STRETCH, self.positions))
            for layer in self.layers:
                layer[:, : len(self.lengths), :, self._finite : stretch] = 0
            self._finite = stretch
