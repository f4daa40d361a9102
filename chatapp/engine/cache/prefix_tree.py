"""Many sequences as one, with common prefixes stored once, which saves work in scoring.

Tokens are nodes of a prefix tree. A node has a slot of the key/value cache, its position is its
depth, and it attends only to the nodes on its path (tree attention, as in Miao et al. 2023). So a
prompt with six labels costs the prompt once and each label's own tokens, in a single pass.

Invariant: a path lists the slot of each token of its row, so a row's token sees exactly what it
would see if the row were alone.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from chatapp.engine.cache.key_values import common_prefix


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
