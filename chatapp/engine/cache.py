"""Keys and values of the tokens a decoder has seen, reused by longest common prefix.

Keep: positions below `len(cache)` hold the keys and values of `cache.ids`; what lies above
is undefined and never read.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    return next(index for index in range(shorter) if a[index] != b[index])


class KeyValueCache:
    """Room for one sequence.

    A layer's keys and values are (1, heads, positions, head size), as the attention kernel
    reads them. All positions are reserved at once and none is written: the operating system
    hands out memory page by page as positions fill.
    """

    def __init__(self, layers: int, heads: int, positions: int, head_size: int) -> None:
        room = torch.empty(layers, 2, 1, heads, positions, head_size)
        self._layers = [(layer[0], layer[1]) for layer in room]
        self.ids: list[int] = []

    def __len__(self) -> int:
        return len(self.ids)

    def rewind(self, ids: Sequence[int]) -> int:
        """Keep what `ids` can reuse and return how many tokens that is.

        The last token of `ids` is never reused, because its logits are wanted.
        """
        kept = min(common_prefix(self.ids, ids), len(ids) - 1)
        del self.ids[kept:]
        return kept

    def keep(self, slots: Sequence[int]) -> None:
        """Forget all but the tokens in `slots`, which become the first ones, in this order.

        slots: rising, and each token's keys depend on its position, which must be its place
        in `slots`.
        """
        moved = next((to for to, slot in enumerate(slots) if to != slot), len(slots))
        if moved < len(slots):
            source = torch.tensor(slots[moved:])
            for pair in self._layers:
                for room in pair:
                    room[:, :, moved : len(slots)] = room[:, :, source]
        self.ids = [self.ids[slot] for slot in slots]

    def clear(self) -> None:
        """Forget everything."""
        self.ids.clear()

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values (1, heads, new, head size) of new tokens after the known ones.

        Returns all of that layer so far. The tokens count as known only after `commit`.
        """
        start, new = len(self.ids), keys.shape[2]
        all_keys, all_values = self._layers[layer]
        all_keys.narrow(2, start, new).copy_(keys)
        all_values.narrow(2, start, new).copy_(values)
        return all_keys.narrow(2, 0, start + new), all_values.narrow(2, 0, start + new)

    def commit(self, ids: Sequence[int]) -> None:
        """Every layer has been extended by the tokens `ids`."""
        self.ids.extend(ids)
