"""Prompt-lookup decoding (Saxena 2023): what followed the same words before may follow again.

Replies that copy (corrections, summaries, code) repeat long stretches of their context.
Tokens guessed from there are computed together with the next one in a single pass, which
reads the weights once for all of them.

Keep: guesses cost or save time and decide nothing. The logits after each token are those of
the tokens before it, so drawing from them one after the other, until a drawn token is not
the guessed one, gives what drawing without guesses gives.
"""

from array import array
from collections.abc import Sequence
from itertools import cycle, islice

from torch import Tensor

# Tokens guessed at once: a pass of so many costs hardly more than one token.
LENGTH = 8
# The n-grams looked for, the longest first.
_SIZES = (3, 2)
# What a pass with guesses costs beyond a plain one, in tokens.
_COST = 0.4
# How fast new passes outweigh old ones, and a doubt from which guessing stopped is forgotten.
_RATE, _RECOVERY = 0.25, 0.02


class Lookup:
    """Guesses for one model, and the logits computed for them.

    gain: tokens that a pass with guesses gave beyond its first, on average of late.
    """

    def __init__(self) -> None:
        self.gain = 1.0
        self._ids: list[int] = []
        self._first = 0
        self._logits: Tensor | None = None
        self._used = 0

    def guess(self, ids: Sequence[int], room: int) -> list[int]:
        """What may follow `ids`, `room` tokens at most; nothing while guesses do not pay."""
        self._learn()
        guessed = following(ids, min(LENGTH, room))
        if guessed and self.gain < _COST:
            self.gain += _RECOVERY
            return []
        return guessed

    def keep(self, ids: Sequence[int], logits: Tensor) -> None:
        """Remember the logits (n, vocabulary) after each of the last n tokens of `ids`."""
        self._ids = list(ids)
        self._first = len(ids) - len(logits) + 1
        self._logits = logits
        self._used = 0

    def recall(self, ids: Sequence[int]) -> Tensor | None:
        """The logits (vocabulary,) after `ids`, if they are remembered."""
        row = len(ids) - self._first
        if self._logits is None or not 0 <= row < len(self._logits):
            return None
        if self._ids[: len(ids)] != ids:
            return None
        self._used = max(self._used, row)
        return self._logits[row]

    def _learn(self) -> None:
        if self._logits is not None:
            self.gain += _RATE * (self._used - self.gain)
            self._logits = None


def following(ids: Sequence[int], most: int) -> list[int]:
    """What followed the final n-gram of `ids` where it last stood before."""
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
                # What goes on to the end of the text is taken to go round.
                return list(islice(cycle(followed), most))
            end = start + size * width - 1
    return []
