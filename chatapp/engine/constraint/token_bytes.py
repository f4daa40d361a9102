"""A tokenizer's tokens as bytes, which is all that a grammar needs to know of it.

Invariant: the bytes of a reply's tokens, one after the other, are its text; a tokenizer without
that property is refused by name.
"""

import random
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

_CLOSES = 1_000
"""More than the bytes of a token."""

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
    of_one_byte: the ids of tokens with one.
    """

    def __init__(self, name: str, tokenizer: _Tokenizer, size: int) -> None:
        """size: the number of logits."""
        token_bytes = getattr(tokenizer, "token_bytes", None)
        if token_bytes is None or not _is_text_of_bytes(tokenizer, token_bytes):
            raise ConstraintError(
                f"{name}: its tokenizer ({type(tokenizer).__name__}) has tokens that are not plain "
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
        self.of_one_byte = [id for token, id in self._ids.items() if len(token) == 1]
        self._closeness = np.array([_closeness(token) for token in tokens])
        self._sparing = self._closeness.copy()
        self._sparing[[self._ids[text] for text in (b"[", b"{") if text in self._ids]] = _CLOSES - 2
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

    def closing(
        self, mask: NDArray[np.bool_], dice: random.Random | None, *, is_sparing: bool
    ) -> int:
        """The token of a mask that seems to bring the end of a JSON text closest.

        dice: chooses any token instead, but closes what can be closed. is_sparing: a list or an
        object that may be empty is.
        """
        allowed = np.flatnonzero(mask)
        closeness = (self._sparing if is_sparing else self._closeness)[allowed]
        if not self.allows(mask, b"a"):  # outside of quotes, which one would only open
            closeness[allowed == self._ids.get(b'"')] = 1
        best = int(closeness.argmax())
        if dice is not None and closeness[best] < _CLOSES:
            best = dice.randrange(len(allowed))
        return int(allowed[best])

    def unpacked(self, bitmask: bytes) -> NDArray[np.bool_]:
        """llguidance's mask as one truth value for each logit: (size,)."""
        bits = np.unpackbits(np.frombuffer(bitmask, np.uint8), bitorder="little")
        return bits[: self.size].astype(bool)


def _closeness(token: bytes) -> int:
    """How soon JSON seems to end with a token: the more it closes, or says of a fixed text."""
    if not token.strip(b'"]}'):
        return _CLOSES + len(token) if token else -1
    if token in (b"0", b"[]", b"{}"):
        return _CLOSES - 1
    return len(token) if token.strip() and b"\n" not in token and b"  " not in token else 0


def _is_text_of_bytes(tokenizer: _Tokenizer, token_bytes: Callable[[int], bytes]) -> bool:
    for sample in _SAMPLES:
        ids = tokenizer.encode(sample, begins=False)
        joined = b"".join(map(token_bytes, ids)).decode("utf-8", "replace")
        if joined.strip() != tokenizer.decode(ids).strip():
            return False
    return True
