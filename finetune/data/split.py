"""Keys of rows, and how rows are split and drawn.

Invariant: only content and seed decide whether a row is trained on or evaluated, whatever the other
rows and their order.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def content_key(content: object) -> str:
    """Sixteen hex digits over plain data: the same content gives the same key everywhere."""
    return text_key(json.dumps(content, sort_keys=True, default=str))


def text_key(text: str) -> str:
    """Sixteen hex digits over a text."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def is_held_out(key: str, share: float) -> bool:
    """Whether the row with this key belongs to the held-out `share`."""
    return int(key, 16) < share * 2.0**64


def draw(rows: Sequence[T], weight: float, seed: int) -> list[T]:
    """`weight` passes over the rows; a fraction is a seeded draw without replacement."""
    whole, fraction = divmod(weight, 1.0)
    chosen = list(rows) * int(whole)
    count = round(fraction * len(rows))
    order = np.random.default_rng(seed).permutation(len(rows))[:count]
    return chosen + [rows[i] for i in order]
