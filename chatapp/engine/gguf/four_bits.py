"""Matrices of four bits as GGUF files have them, for int4: they are never floats on the way.

What is stored differs: a scale and numbers around 8 (Q4_0), a scale, a least value and numbers
(Q4_1), or groups whose scales are numbers of six bits themselves (Q4_K). Each is brought into
groups of 32 weights w = s · (n - 8) + z, as chatapp/engine/linear.py takes them.

Keep: a row of the matrix stays a row of bytes, so that whatever puts rows into another order, or
stacks matrices, does the same to these. Free of torch.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from chatapp.engine.four_bits import GROUP, Group

Bytes = NDArray[np.uint8]
Parts = tuple[Bytes, NDArray[np.float32], NDArray[np.float32]]

# Weights of a block of Q4_K, and groups in it.
_SUPER = 256
_GROUPS = _SUPER // GROUP


def groups_of(data: Bytes, kind: str) -> Bytes:
    """The rows of a matrix as rows of `Group`s, in bytes: (out, in / 32 · size of a group).

    data: (out, bytes of a row), as stored. kind: one of `KINDS`.
    """
    numbers, scale, zero = KINDS[kind](data)
    groups = np.empty(scale.shape, Group)
    groups["numbers"], groups["scale"], groups["zero"] = numbers, scale, zero
    return groups.view(np.uint8)


def _halves(data: Bytes) -> NDArray[np.float32]:
    """Two bytes each: float16."""
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)[..., 0]


def _nibbles(data: Bytes) -> Bytes:
    """The lower four bits of all bytes (…, n), then the upper ones: (…, 2 n)."""
    return np.concatenate((data & 15, data >> 4), axis=-1)


def _q4_0(data: Bytes) -> Parts:
    blocks = data.reshape(len(data), -1, 2 + GROUP // 2)
    scale = _halves(blocks[..., :2])
    return _nibbles(blocks[..., 2:]), scale, np.zeros_like(scale)


def _q4_1(data: Bytes) -> Parts:
    blocks = data.reshape(len(data), -1, 4 + GROUP // 2)
    scale, least = _halves(blocks[..., :2]), _halves(blocks[..., 2:4])
    return _nibbles(blocks[..., 4:]), scale, least + 8 * scale


def _q4_k(data: Bytes) -> Parts:
    """Of a block's 12 bytes of six bits, the first four hold the scales of four groups, the next
    four what is taken away there; their upper bits and the last four bytes hold the others'."""
    blocks = data.reshape(len(data), -1, 4 + 12 + _SUPER // 2)
    low, middle, high = (blocks[..., start : start + 4] for start in (4, 8, 12))
    scales = np.concatenate((low & 63, (high & 15) | (low >> 6 << 4)), axis=-1)
    leasts = np.concatenate((middle & 63, (high >> 4) | (middle >> 6 << 4)), axis=-1)
    scale = _halves(blocks[..., :2])[..., None] * scales
    least = _halves(blocks[..., 2:4])[..., None] * leasts
    # The lower bits of 32 bytes are one group, the upper ones the next.
    numbers = _nibbles(blocks[..., 16:].reshape(*blocks.shape[:2], _GROUPS // 2, GROUP))
    rows = len(data)
    return (
        numbers.reshape(rows, -1, GROUP),
        scale.reshape(rows, -1),
        (8 * scale - least).reshape(rows, -1),
    )


KINDS: dict[str, Callable[[Bytes], Parts]] = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q4_K": _q4_k}
