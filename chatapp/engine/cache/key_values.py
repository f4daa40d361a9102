"""Caches of keys and values (of single sequences, pooled, and of batches), and guesses from a text.

A sequence reuses its longest common prefix with the cache; a pool keeps several texts, so that
returning to a chat computes nothing again. Many sequences are scored as one with common prefixes
stored once: tokens are nodes of a prefix tree, with a slot of the cache each and their depth as the
position, and attend only to the nodes on their path (tree attention, as in Miao et al. 2023).

Prompt-lookup decoding (Saxena 2023): replies that copy (corrections, summaries, code) repeat long
parts of their context, so tokens are guessed from there, and one pass gives the logits for all of
them.

Invariants: positions below `len(cache)` hold the keys and values of `cache.ids`; anything above is
undefined and never read. Row n of a `RowCache` holds the `lengths[n]` tokens of its sequence from
position 0 on; positions after them, up to the longest row, are multiplied by 0 and must be finite.
Guesses change only the speed: the logits after each token depend only on the tokens before it, so
drawing from them one after the other, up to the first wrong guess, gives the same tokens.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import cycle, islice

import numpy as np
import torch
from torch import Tensor


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of leading tokens that two sequences share."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    return next(index for index in range(shorter) if a[index] != b[index])


# Positions reserved at first, and doubled as they fill: two windows of a GPT-2.
_RESERVED_AT_FIRST = 2048


class KeyValueCache:
    """Keys and values of one sequence.

    A layer's keys and values are (1, heads, positions, head size), as the attention kernel reads
    them. Positions are reserved before they are written: on a CPU, the operating system provides
    memory page by page. A long window is reserved in steps, because no machine promises more memory
    than it has.

    positions: the most there will be. layers: the reserved tensor of each, (2, 1, heads, reserved
    positions, head size), keys, then values, one after another in memory; replaced when they grow.
    """

    def __init__(
        self,
        layers: int,
        heads: int,
        positions: int,
        head_size: int,
        device: torch.device | None = None,
    ) -> None:
        self._positions = positions
        self._touched = 0
        self.ids: list[int] = []
        size = min(positions, _RESERVED_AT_FIRST)
        self.layers = torch.empty(layers, 2, 1, heads, size, head_size, device=device).unbind(0)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def bytes(self) -> int:
        """Memory in use."""
        # On a GPU, memory is used whether it is written or not.
        layer = self.layers[0]
        touched = self._touched if layer.device.type == "cpu" else layer.shape[3]
        return touched * self.bytes_per_position

    @property
    def bytes_per_position(self) -> int:
        """Bytes of the keys and values of one token."""
        return self.layers[0].nbytes // self.layers[0].shape[3] * len(self.layers)

    def reserve(self, size: int) -> None:
        """Reserve room for this many tokens in all, at most `positions`; the contents stay."""
        reserved = self.layers[0].shape[3]
        if size <= reserved:
            return
        more = min(self._positions, max(size, 2 * reserved))
        *shape, _, head_size = self.layers[0].shape
        known = len(self.ids)
        size_of_all = (len(self.layers), *shape, more, head_size)
        grown = torch.empty(size_of_all, device=self.layers[0].device).unbind(0)
        for larger, layer in zip(grown, self.layers, strict=True):
            larger[..., :known, :] = layer[..., :known, :]
        self.layers = grown

    def copy(self, other: "KeyValueCache", size: int) -> None:
        """Copy the first `size` tokens of another cache of the same model, dropping all others."""
        self.ids.clear()
        self.reserve(size)
        for target, source in zip(self.layers, other.layers, strict=True):
            target[..., :size, :] = source[..., :size, :]
        self.ids = other.ids[:size]
        self._touched = max(self._touched, size)

    def rewind(self, ids: Sequence[int]) -> int:
        """Cut back to what `ids` can reuse; return the number of reused tokens.

        The last token of `ids` is never reused, because its logits are needed.
        """
        reused = min(common_prefix(self.ids, ids), len(ids) - 1)
        del self.ids[reused:]
        return reused

    def keep(self, slots: Sequence[int]) -> None:
        """Keep only the tokens in `slots`, which become the first ones, in this order.

        slots: rising. Keys depend on the position they were computed for, which must be the token's
        index in `slots`.
        """
        moved = next((to for to, slot in enumerate(slots) if to != slot), len(slots))
        if moved < len(slots):
            source = torch.tensor(slots[moved:], device=self.layers[0].device)
            for layer in self.layers:
                layer[..., moved : len(slots), :] = layer[..., source, :]
        self.ids = [self.ids[slot] for slot in slots]

    def clear(self) -> None:
        """Drop everything."""
        self.ids.clear()

    def prepare(self, new: int) -> None:
        """Make room for new tokens, whose keys and values the caller then writes into `layers`."""
        self.reserve(len(self.ids) + new)
        self._touched = max(self._touched, len(self.ids) + new)

    def extend(self, layer: int, new: Tensor) -> tuple[Tensor, Tensor]:
        """Write the keys and values of new tokens after the known ones.

        new: (2, 1, heads, tokens, head size), the keys and then the values. Returns all keys and
        all values of that layer so far. The tokens become known with `commit`.
        """
        start, size = len(self.ids), new.shape[3]
        self.prepare(size)
        reserved = self.layers[layer]
        reserved.narrow(3, start, size).copy_(new)
        keys, values = reserved.narrow(3, 0, start + size).unbind(0)
        return keys, values

    def commit(self, ids: Sequence[int]) -> None:
        """Record the tokens `ids`, after every layer has been extended by them."""
        self.ids.extend(ids)


# Texts in the pool, and the number of tokens that are not worth keeping.
_MAX_TEXTS = 8
_SHORT = 32


class CachePool:
    """Caches of the most recent texts, within a common limit.

    limit: bytes. A single cache may exceed it. kept: those that no other text takes the place of,
    because more of their prompts is to be read; they may exceed it as well.
    """

    def __init__(self, new: Callable[[], KeyValueCache], limit: int) -> None:
        self._new = new
        self._limit = limit
        self.kept: Sequence[KeyValueCache] = ()
        self._caches: list[KeyValueCache] = []  # the most recent one at the end

    def known(self, ids: Sequence[int]) -> int:
        """How many of the first tokens of `ids` some cache holds."""
        return max((common_prefix(cache.ids, ids) for cache in self._caches), default=0)

    def take(self, ids: Sequence[int]) -> tuple[KeyValueCache, int]:
        """Take the cache that can reuse most of `ids`; return it and the number of reused tokens.

        If most of a text differs from `ids`, its cache stays for its return and the common part is
        copied, unless that text is very short.
        """
        shared, best = 0, None
        for cache in reversed(self._caches):
            size = min(common_prefix(cache.ids, ids), len(ids) - 1)
            if best is None or size > shared:
                shared, best = size, cache
        most = 0 if best in self.kept else max(shared, _SHORT)
        if best is None or len(best) - shared > most:
            cache = self._spare(keep=best)
            if best is not None and cache is not best:
                cache.copy(best, shared)
            best = cache
        if best in self._caches:
            self._caches.remove(best)
        self._caches.append(best)
        others = [cache for cache in self._caches[:-1] if cache not in self.kept]
        while others and self._bytes() > self._limit:
            self._caches.remove(others.pop(0))
        return best, best.rewind(ids)

    def clear(self) -> None:
        """Drop everything."""
        self._caches.clear()
        self.kept = ()

    def _bytes(self) -> int:
        return sum(cache.bytes for cache in self._caches)

    def _spare(self, keep: KeyValueCache | None) -> KeyValueCache:
        """A new cache while the limits allow one, else the least recently used one."""
        largest = max((cache.bytes for cache in self._caches), default=0)
        if len(self._caches) < _MAX_TEXTS and self._bytes() + largest <= self._limit:
            return self._new()
        usable = [*(cache for cache in self._caches if cache is not keep), keep]
        unused = next((cache for cache in usable if cache not in self.kept), None)
        # An empty cache has length 0, and would count as none.
        return self._new() if unused is None else unused


# Positions made finite at once: on a CPU, unwritten memory takes no space.
_STRETCH = 64


class RowCache:
    """Keys and values of several sequences, one in each row; the first rows are in use.

    like: a cache of the model, for the shape of its keys and values. rows, positions: the most
    sequences, and the longest. lengths: tokens in each row in use.
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
        """Copy a cache into a row, a new one or another sequence's."""
        size = len(cache)
        self._reach(size)
        for layer, other in zip(self.layers, cache.layers, strict=True):
            self._write(layer, row, other[:, 0, :, :size])
        self.lengths[row : row + 1] = [size]

    def copy(self, other: "RowCache") -> None:
        """Take over all sequences of a cache of the same model."""
        self._reach(max(other.lengths))
        self.lengths = list(other.lengths)
        for layer, held in zip(self.layers, other.layers, strict=True):
            for row, size in enumerate(self.lengths):
                self._write(layer, row, held[:, row, :, :size])

    def remove(self, row: int) -> None:
        """Free a row; the last one moves to its place."""
        size = self.lengths.pop()
        last = len(self.lengths)
        if row == last:
            return
        for layer in self.layers:
            self._write(layer, row, layer[:, last, :, :size])
        self.lengths[row] = size

    def clear(self) -> None:
        """Free all rows."""
        self.lengths.clear()

    def begin(self, new: int = 1) -> tuple[Tensor, Tensor]:
        """Make room for more tokens in each row.

        Returns the positions of their first ones (rows in use,) and, up to these, those of all keys
        (keys,).
        """
        self._reach(max(self.lengths) + new)
        device = self.layers[0].device
        self._rows = torch.arange(len(self.lengths), device=device)
        self._at = torch.tensor(self.lengths, device=device)
        return self._at, torch.arange(max(self.lengths) + 1, device=device)

    def extend(self, layer: int, new: Tensor) -> tuple[Tensor, Tensor]:
        """Write the keys and values of the tokens that `begin` made room for.

        new: (2, rows in use, heads, 1, head size), the keys and then the values. Returns all keys
        and all values of these rows, up to the longest.
        """
        held = self.layers[layer]
        # Separated indices come first: (rows in use, 2, heads, head size).
        held[:, self._rows, :, self._at] = new.squeeze(3).transpose(0, 1)
        in_use = held[:, : len(self.lengths), :, : max(self.lengths) + 1]
        keys, values = in_use.unbind(0)
        return keys, values

    def commit(self, new: int = 1) -> None:
        """Record the new tokens of each row, after every layer has been extended."""
        self.lengths = [length + new for length in self.lengths]

    def _write(self, layer: Tensor, row: int, held: Tensor) -> None:
        """held: (2, heads, tokens, head size)."""
        size = held.shape[2]
        layer[:, row, :, :size] = held
        # A failed sequence may have left NaN.
        layer[:, row, :, size : self._finite] = 0

    def _reach(self, positions: int) -> None:
        if positions > self._finite:
            stretch = max(positions, min(self._finite + _STRETCH, self.positions))
            for layer in self.layers:
                layer[:, : len(self.lengths), :, self._finite : stretch] = 0
            self._finite = stretch


class PrefixTree:
    """Rows after the contents of a cache, added in lexicographic order.

    ids, positions: the tokens that the cache does not hold, one per node. path: the slot of each
    token of the last row.
    """

    def __init__(self, known: Sequence[int]) -> None:
        self.start = len(known)
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.path = list(range(self.start))
        self._row = list(known)
        self._branches: list[tuple[list[int], int]] = []

    def shared(self, row: Sequence[int]) -> int:
        """The number of leading tokens of `row` that the last row has."""
        return common_prefix(self._row, row)

    def add(self, row: Sequence[int]) -> list[int]:
        """Make room for the new tokens of `row`; return its path."""
        shared = self.shared(row)
        first = self.start + len(self.ids)
        self.ids += row[shared:]
        self.positions += range(shared, len(row))
        self.path = [*self.path[:shared], *range(first, first + len(row) - shared)]
        self._row = list(row)
        if shared < len(row):
            self._branches.append((self.path, shared))
        return self.path

    def mask(self) -> Tensor | None:
        """The nodes that each new token sees: (new, start + new), 0 or -inf; None for plain
        causality.
        """
        if len(self._branches) < 2:
            return None
        shape = (len(self.ids), self.start + len(self.ids))
        mask = np.full(shape, -np.inf, dtype=np.float32)
        for path, shared in self._branches:
            own = slice(path[shared], path[-1] + 1)
            rows = mask[own.start - self.start : own.stop - self.start]
            rows[:, path[:shared]] = 0
            rows[:, own][np.tri(len(rows), dtype=bool)] = 0
        return torch.from_numpy(mask)


# Tokens guessed at once: few, and more after some that all came true.
_FEW_GUESSES, MOST_GUESSES = 3, 8
# The lengths of n-grams to search, the longest first.
_SIZES = (3, 2)
# How fast new passes outweigh old ones, and how fast a bad average after which guessing stopped is
# forgotten.
_RATE, _RECOVERY = 0.25, 0.008


class Lookup:
    """Guesses for one model, and the logits computed for them.

    cost: of one more token in a pass, in passes of one token. gain: recent average of the tokens
    that a pass with guesses gave beyond its first.
    """

    def __init__(self, cost: float = 0.0) -> None:
        self.gain, self._cost = max(1.0, _FEW_GUESSES * cost), cost
        self._ids: list[int] = []
        self._first = 0
        self._logits: Tensor | None = None
        self._used = 0
        self._is_guess, self._came_true = True, False

    def guess(self, ids: Sequence[int], room: int) -> list[int]:
        """Guess what follows `ids`, at most `room` tokens; nothing while guesses do not pay."""
        self._learn()
        most = MOST_GUESSES if self._came_true else min(_FEW_GUESSES, MOST_GUESSES)
        guessed = following(ids, min(most, room))
        if guessed and self.gain < _FEW_GUESSES * self._cost:
            self.gain += _RECOVERY
            return []
        return guessed

    def keep(self, ids: Sequence[int], logits: Tensor, *, is_guess: bool = True) -> None:
        """Store the logits (n, vocabulary) after each of the last n tokens of `ids`.

        is_guess: they may turn out wrong; what is certain teaches nothing about guessing.
        """
        self._ids = list(ids)
        self._first = len(ids) - len(logits) + 1
        self._logits = logits
        self._used = 0
        self._is_guess = is_guess

    def recall(self, ids: Sequence[int]) -> Tensor | None:
        """The stored logits (vocabulary,) after `ids`, or None."""
        row = len(ids) - self._first
        if self._logits is None or not 0 <= row < len(self._logits):
            return None
        if self._ids[: len(ids)] != ids:
            return None
        self._used = max(self._used, row)
        return self._logits[row]

    def _learn(self) -> None:
        if self._logits is not None and self._is_guess:
            self.gain += _RATE * (self._used - self.gain)
            self._came_true = self._used == len(self._logits) - 1
        self._logits = None


def following(ids: Sequence[int], most: int) -> list[int]:
    """The tokens after the previous occurrence of the final n-gram of `ids`."""
    if most < 1:
        return []
    text = array("i", ids)
    width = text.itemsize
    data = text.tobytes()
    for size in _SIZES:
        if len(ids) <= size:
            continue
        end = len(data) - width
        # Bytes may match across the border of two tokens.
        while (start := data.rfind(data[-size * width :], 0, end)) >= 0:
            if start % width == 0:
                followed = list(ids[start // width + size :])
                # A match that reaches the end of the text is assumed to repeat.
                return list(islice(cycle(followed), most))
            end = start + size * width - 1
    return []
