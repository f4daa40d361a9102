"""A reply while it grows under its constraint: which tokens may come, and whether it fits.

Invariant: no token comes that leads to a text outside the constraint, and no special token except
the one that ends the reply where it may end.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chatapp.engine.constraint.compiling import ConstraintError, mask_of, words_of
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.constraint.token_bytes import Vocabulary
from chatapp.engine.constraint.validation import misfit
from chatapp.engine.events import FinishReason

_CUT = {
    "length": "it was cut off after {tokens} tokens, before its end",
    "context": "it filled the model's window before its end",
    "repetition": "it repeated itself",
    "cancelled": "it was stopped before its end",
    "stop": "it ended too early",
}


@dataclass(frozen=True, slots=True)
class Allowed:
    """The tokens that may come next.

    mask: (vocabulary,). only: the one that must come, or None. may_close: whether JSON's innermost
    list or object may end; may_end: or the text within quotes.
    """

    mask: NDArray[np.bool_]
    only: int | None
    may_close: bool = False
    may_end: bool = False


class Matcher:
    """The state of one reply.

    ends: the ids that end a reply; they are allowed where the reply may end. is_on: whether its
    text is within the constraint now. is_over: nothing more may come.
    """

    def __init__(
        self,
        constraint: Constraint,
        vocabulary: Vocabulary,
        ends: Collection[int],
        mark: int | None,
    ) -> None:
        """mark: the special token that `constraint.after` names, or None.

        Raises ConstraintError.
        """
        self._constraint = constraint
        self._vocabulary = vocabulary
        self._ends = [id for id in ends if id < vocabulary.size]
        self._mark = mark
        self._state = vocabulary.state_of(constraint)
        self._waiting: list[int] = []
        self._written = ""
        self._is_broken = False
        self.is_on = not constraint.after
        self.has_begun = self.is_on
        self._raise_error(ConstraintError)
        if constraint.begun:
            self._feed(constraint.begun)
            if self._is_broken:
                raise ConstraintError(f"the reply's beginning does not fit its {constraint.kind}")
        if self.is_on and not self.is_over and not self.allowed().mask.any():
            raise ConstraintError(
                f"the model's vocabulary has no token with which a text of this "
                f"{constraint.kind} can begin"
            )

    @property
    def is_over(self) -> bool:
        """Whether the text is complete and nothing more may come."""
        return self.is_on and not self._constraint.is_optional and self._state.is_stopped()

    def allowed(self) -> Allowed:
        """What may come next. Raises RuntimeError when that takes too long to find out."""
        mask = self._vocabulary.unpacked(mask_of(self._state))
        may_end = bool(mask[self._vocabulary.end_id])
        mask[self._vocabulary.special] = False
        mask[self._ends] = may_end
        self._raise_error(RuntimeError)
        ahead = self.ahead()
        if ahead:
            return Allowed(mask, ahead[0])
        few = np.flatnonzero(mask)
        if len(few) == 1:
            return Allowed(mask, int(few[0]))
        allows, within_quotes = self._vocabulary.allows, self._vocabulary.allows(mask, b"a")
        closing = (b'"]', b'"}') if within_quotes else (b"]", b"}")
        return Allowed(mask, None, allows(mask, *closing), within_quotes and allows(mask, b'"'))

    def ahead(self) -> list[int]:
        """The tokens that must come next, in their order; often none."""
        if not self.is_on:
            return []
        if not self._waiting and not self._state.is_stopped():
            forced = self._state.compute_ff_tokens()
            self._waiting = forced[: self._state.validate_tokens(forced)]
        return self._waiting

    def take(self, id: int, text: str) -> None:
        """Add a token. text: what became complete with it."""
        if not self.is_on:
            self._watch(id, text)
            return
        self._written += text
        self._waiting = self._waiting[1:] if self._waiting[:1] == [id] else []
        if not self._state.consume_token(id):
            self._is_broken = True
        if self._constraint.is_optional and self._state.is_stopped():
            self.is_on = False

    def _watch(self, id: int, text: str) -> None:
        """Look for the text after which the constraint applies."""
        if self.has_begun:
            return
        self._written += text
        _, mark, rest = self._written.partition(self._constraint.after)
        if id == self._mark or mark:
            self.is_on = self.has_begun = True
            self._written = ""
            self._feed(rest if mark else "")

    def _feed(self, text: str) -> None:
        """Add text that came before the constraint applied."""
        ids = self._vocabulary.tokenizer.tokenize_str(text)
        self._is_broken = not self._state.consume_tokens(ids) if ids else False
        self._written += text
        if self._is_broken and self._constraint.is_optional:
            self.is_on = False

    def verdict(
        self, reason: FinishReason, rest: str, tokens: int, *, checked: bool = True
    ) -> tuple[bool | None, str]:
        """Whether the reply fits, None if that does not apply; and why not.

        reason: why it ended. rest: text that was not in a token. tokens: of the reply. checked:
        whether a schema is also checked without its grammar, which can take seconds.
        """
        if self._constraint.is_optional:
            return None, ""
        kind, text = self._constraint.kind, (self._written + rest).strip()
        is_whole = reason == "stop" and self.has_begun and self._state.is_accepting()
        if not is_whole or self._is_broken:
            why = _CUT.get(reason, "it failed").format(tokens=tokens)
            return False, f"the reply does not fit its {kind}: {why}"
        if checked and kind == "schema" and (why := misfit(text, self._constraint.source)):
            return False, f"the reply does not fit its schema: {why}"
        return True, ""

    def _raise_error(self, error: type[Exception]) -> None:
        if self._state.is_error():
            kind = self._constraint.kind
            raise error(f"the {kind} cannot be followed: {words_of(self._state.get_error())}")
