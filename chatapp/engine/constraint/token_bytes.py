"""A tokenizer's tokens as bytes, which is all that a grammar needs to know of it.

Invariant: the bytes of a reply's tokens, one after the other, are its text; a tokenizer without
that property is refused by name.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from chatapp.engine.constraint.compiling import ConstraintError, described, matcher_of
from chatapp.engine.constraint.constraint import Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher

_MOST_COMPILED = 8
"""Constraints that stay compiled, each in at most some 40 MB."""

_SAMPLES = ("Two words, 3 signs.", "a b")


class _Tokenizer(Protocol):
    """What of `engine.model.Tokenizer` is needed here."""

    end_id: int
    special: Mapping[str, int]

    def encode(self, text: str, *, begins: bool = True) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


class Vocabulary:
    """A tokenizer for grammars. Raises ConstraintError for one that cannot be used.

    name: of the model, for the error. tokenizer: llguidance's. special: the ids that no text has.
    """

    def __init__(self, name: str, tokenizer: _Tokenizer, size: int) -> None:
        """size: the number of logits."""
        token_bytes = getattr(tokenizer, "token_bytes", None)
        if token_bytes is None or not _is_text_of_bytes(tokenizer, token_bytes):
            raise ConstraintError(
                f"{name}: its tokenizer ({type(tokenizer).__name__}) has tokens that are no plain "
                "pieces of text, so its replies cannot be made to fit a schema, a pattern or a "
                "grammar"
            )
        self.size = size
        self.special = np.array(sorted({*tokenizer.special.values(), tokenizer.end_id}))
        self.special = self.special[self.special < size]
        special = set(self.special.tolist())
        tokens = [b"" if id in special else token_bytes(id) for id in range(size)]
        tokens[tokenizer.end_id] = b"\xff<end>"
        self.end_id = tokenizer.end_id
        self._ids = {token: id for id, token in enumerate(tokens)}
        self.tokenizer = described(
            tokens, self.end_id, lambda text: tokenizer.encode(text, begins=False)
        )
        self._compiled = lru_cache(_MOST_COMPILED)(partial(matcher_of, self.tokenizer))

    def state_of(self, constraint: Constraint) -> "LLMatcher":
        """The state of an empty text. What a constraint needs is compiled by the first call, which
        may take seconds; so not on a thread that others wait for.
        """
        return self._compiled(constraint.grammar()).deep_copy()

    def allows(self, mask: NDArray[np.bool_], *texts: bytes) -> bool:
        """Whether a mask has one of the tokens with these bytes."""
        return any(mask[self._ids[text]] for text in texts if text in self._ids)

    def unpacked(self, bitmask: bytes) -> NDArray[np.bool_]:
        """llguidance's mask as one truth value for each logit: (size,)."""
        bits = np.unpackbits(np.frombuffer(bitmask, np.uint8), bitorder="little")
        return bits[: self.size].astype(bool)


def _is_text_of_bytes(tokenizer: _Tokenizer, token_bytes: Callable[[int], bytes]) -> bool:
    for sample in _SAMPLES:
        ids = tokenizer.encode(sample, begins=False)
        joined = b"".join(map(token_bytes, ids)).decode("utf-8", "replace")
        if joined.strip() != tokenizer.decode(ids).strip():
            return False
    return True
