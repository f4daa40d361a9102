"""A reply while it grows under its constraint: which tokens may come, and whether it fits.

Invariant: no token comes that leads to a text outside the constraint, and no special token except
the one that ends the reply where it may end.
"""

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chatapp.engine.constraint.compiling import ConstraintError, mask_of, words_of
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.constraint.token_bytes import Vocabulary
from chatapp.engine.constraint.validation import misfit
from chatapp.engine.events import FinishReason

if TYPE_CHECKING:
    from llguidance import LLMatcher

_LOOKED_AHEAD = 128
"""Tokens before a limit from which on a text has to be closable, or twice as many as the shortest
has: a part that needs more can begin before."""

_LONGEST_ENDING, _LONGEST_TRIAL, _TRIALS, _SEARCHES = 2048, 256, 6, 24
"""Tokens in which an end is looked for at first, and by chance, how often, and how many dear steps
each trial may have: bounds, because other replies wait."""

_CLOSED = ("length", "context", "repetition")
"""Reasons for which JSON is closed."""

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
        self._closing: list[int] | None = None
        """Tokens that end the text from here on, where they are known."""
        self._least = 0
        self._written = ""
        self._texts: list[str] = []  # of the tokens after that
        self._is_broken = False
        self.is_on = not constraint.after
        self.has_begun = self.is_on
        self._raise_error(ConstraintError)
        if constraint.begun:
            self._feed(constraint.begun)
            if self._is_broken:
                raise ConstraintError(f"the reply's beginning does not fit its {constraint.kind}")
        try:
            begins = not self.is_on or self.is_over or self.allowed().mask.any()
        except RuntimeError as error:  # too dear, which is seen only with the model's tokens
            raise ConstraintError(str(error)) from None
        if not begins:
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

    @property
    def closes(self) -> bool:
        """Whether the reply ends in time: JSON, if it does not follow another text."""
        return self._constraint.kind == "schema" and self.is_on and not self._constraint.is_optional

    def check_room(self, tokens: int) -> None:
        """Raise ConstraintError where no reply of so many tokens fits."""
        if not self.closes:
            return
        self._closing = self._ending(self._state, _LONGEST_ENDING, tokens, _TRIALS)
        self._least = len(self._closing or ())
        if self._least > tokens:
            raise ConstraintError(
                f"no reply of at most {tokens} tokens fits the schema; the shortest that was found "
                f"has {self._least}"
            )

    def in_time(self, id: int, left: int) -> int:
        """A token that may come: `id`, or else the first of those that end the text, where it could
        not be closed any more with the `left` tokens that may come, `id` among them.
        """
        if not self.closes or left > max(_LOOKED_AHEAD, 2 * self._least):
            return id
        if self._closing is None:
            self._closing = self._ending(self._state, left, left)
        if self._closing is None or self._closing[:1] == [id]:
            return id
        after = self._state.deep_copy()
        after.consume_token(id)
        ending = self._ending(after, left - 1, left - 1)
        if ending is None:
            return self._closing[0] if self._closing else self._ends[0]
        self._closing = [id, *ending]
        return id

    def close(self, dropped: int) -> list[int]:
        """Tokens that close the reply without its last `dropped` ones; none where none are found.
        Then nothing more may come but its verdict.
        """
        state = self._state.deep_copy()
        if not self.closes or not state.rollback(dropped):
            return []
        ending = self._ending(state, _LONGEST_TRIAL, 0)
        if ending is None or not state.consume_tokens(ending):
            return []
        self._state = state
        del self._texts[len(self._texts) - dropped :]
        return ending

    def _ending(
        self, state: "LLMatcher", most: int, wanted: int, trials: int = 2
    ) -> list[int] | None:
        """At most `most` tokens with which the text after a state can end; the fewest of several
        trials, unless `wanted` or fewer are found before. None where no trial finds the end.
        """
        best = None
        for trial in range(trials):
            longest = min(most, _LONGEST_TRIAL) if trial else most
            tokens = self._one_ending(state.deep_copy(), longest, trial)
            if tokens is not None and (best is None or len(tokens) < len(best)):
                best = tokens
            if best is not None and len(best) <= wanted:
                break
        return best

    def _one_ending(self, state: "LLMatcher", most: int, trial: int) -> list[int] | None:
        tokens: list[int] = []
        known, searches = dict[bytes, bool](), _SEARCHES  # what may come, and whether a way out was
        dice = random.Random(trial) if trial > 1 else None
        while not (state.is_accepting() or state.is_error()) and len(tokens) < most:
            forced = state.compute_ff_tokens()
            forced = forced[: state.validate_tokens(forced)]
            if not forced:
                bits = state.compute_bitmask()
                mask = self._vocabulary.unpacked(bits)
                mask[self._vocabulary.special] = False
                if not mask.any():
                    return None
                # What allows the same as before may go on without end: `a` in the pattern a+b.
                leaving = None
                if known.get(bits, False) and searches:
                    leaving, searches = self._leaving(state, mask, known), searches - 1
                known[bits] = leaving is not None or bits not in known
                closing = self._vocabulary.closing(mask, dice, is_sparing=trial > 0)
                forced = [closing if leaving is None else leaving]
            state.consume_tokens(forced)
            tokens += forced
        return tokens if state.is_accepting() and len(tokens) <= most else None

    def _leaving(
        self, state: "LLMatcher", mask: NDArray[np.bool_], known: Collection[bytes]
    ) -> int | None:
        """A token of one byte after which what may come is none of what is known."""
        for id in self._vocabulary.of_one_byte:
            if mask[id]:
                after = state.deep_copy()
                after.consume_token(id)
                if after.is_accepting() or after.compute_bitmask() not in known:
                    return id
        return None

    def take(self, id: int, text: str) -> None:
        """Add a token. text: what became complete with it."""
        if not self.is_on:
            self._watch(id, text)
            return
        self._texts.append(text)
        self._waiting = self._waiting[1:] if self._waiting[:1] == [id] else []
        follows = self._closing is not None and self._closing[:1] == [id]
        self._closing = self._closing[1:] if self._closing is not None and follows else None
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
        kind, text = self._constraint.kind, "".join((self._written, *self._texts, rest)).strip()
        is_whole = self.has_begun and self._state.is_accepting()
        is_whole = is_whole and (reason == "stop" or (reason in _CLOSED and self.closes))
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
