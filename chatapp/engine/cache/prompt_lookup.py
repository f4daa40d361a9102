"""Prompt-lookup decoding (Saxena 2023): words that followed the same words before may follow again.

Replies that copy (corrections, summaries, code) repeat long parts of their context. Tokens guessed
from there are computed together with the next one in a single pass, which reads the weights once
for all of them.

Invariant: guesses change only the speed. The logits after each token depend only on the tokens
before it, so drawing from them one after the other, up to the first wrong guess, gives the same
tokens as drawing without guesses.
"""

from array import array
from collections.abc import Sequence
from itertools import cycle, islice

from torch import Tensor

# Tokens guessed at once: a pass of so many costs hardly more than one token.
LENGTH = 8
# The lengths of n-grams to search, the longest first.
_SIZES = (3, 2)
# The extra cost of a pass with guesses over a plain one, in tokens.
_COST = 0.4
# How fast new passes outweigh old ones, and how fast a bad average after which guessing stopped is
# forgotten.
_RATE, _RECOVERY = 0.25, 0.02


class Lookup:
    """Guesses for one model, and the logits computed for them.

    gain: recent average of the tokens that a pass with guesses gave beyond its first.
    """

    def __init__(self) -> None:
        self.gain = 1.0
        self._ids: list[int] = []
        self._first = 0
        self._logits: Tensor | None = None
        self._used = 0
        self._is_guess = True

    def guess(self, ids: Sequence[int], room: int) -> list[int]:
        """Guess what follows `ids`, at most `room` tokens; nothing while guesses do not pay."""
        self._learn()
        guessed = following(ids, min(LENGTH, room))
        if guessed and self.gain < _COST:
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
