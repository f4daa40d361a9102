"""Ends replies at stop strings, and replies that repeat themselves.

Invariants: however a reply is cut into pieces, the output is the reply up to the first occurrence
of a stop string, and a character that may still belong to a stop string is held back. A character
that repetition may still cut off is held back, too, so no shown text is ever removed.

The rule of repetition: the reply's last tokens are one cycle of at most 32 tokens, repeated
`max_repeats` times at least and 32 tokens at least. Such a cycle continues if it was requested: if
the prompt contains it twice in a row, or contains its words in their order and an English word that
asks for more of them, such as "times". The words alone do not suffice: small models repeat their
prompt. JSON that a schema demands repeats its layout: a cycle of it has up to 128 tokens, one of
more than 32 comes three times, and it counts only where the list, the object, or the text that it
is within could have ended. It is then closed in place of the comma
before the cycle, if it could have been.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar


class StopFilter:
    """Passes text through until a stop string occurs.

    hit: whether one occurred; then there is no more output.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        if "" in stop:
            raise ValueError("a stop string is empty; expected at least one character")
        self._stop = tuple(stop)
        self._held = ""
        self.hit = False

    def push(self, text: str) -> str:
        """The text that is certainly visible once `text` is added."""
        if self.hit:
            return ""
        self._held += text
        match, possible = self._first_match(), self._first_possible()
        if match <= possible and match < len(self._held):
            self.hit = True
        visible = self._held[: min(match, possible)]
        self._held = self._held[len(visible) :]
        return visible

    def flush(self) -> str:
        """The text held back so far, at the end of the text."""
        if self.hit:
            return ""
        match = self._first_match()
        self.hit = match < len(self._held)
        return self._held[:match]

    def _first_match(self) -> int:
        """The position of the first stop string; the length of the held text if there is none."""
        starts = (self._held.find(stop) for stop in self._stop)
        return min((start for start in starts if start >= 0), default=len(self._held))

    def _first_possible(self) -> int:
        """The position of the longest suffix of the held text that begins some stop string."""
        longest = 0
        for stop in self._stop:
            for size in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:size]):
                    longest = size
                    break
        return len(self._held) - longest


_LONGEST_CYCLE, _LONGEST_OF_JSON = 32, 128
"""In tokens: a longer cycle is a refrain, not a fault of the model."""

_LONG_REPEATS = 3
"""Repetitions of a cycle that is longer than `_LONGEST_CYCLE`."""

_FEWEST_TOKENS = 32
"""A shorter repetition is a line of dashes, laughter, or the head of a table."""

_ASKING = set(
    "again copies copy echo endlessly fill forever keep over repeat repeatedly times".split()
)
_CLOSING = {".", "!", "?"}
_WORD = re.compile(r"\w+")

_Cycle = TypeVar("_Cycle", str, list[str])


class RepetitionFilter:
    """Passes tokens' text through until the reply repeats itself.

    prompt: returns the prompt's text, called only when a reply repeats itself. max_repeats: the
    most consecutive repetitions of a cycle; 0 disables the filter. is_json: whether a schema
    demands its form. hit: whether the reply was ended; then there is no more output. dropped: how
    many tokens have no text then.
    """

    def __init__(
        self, prompt: Callable[[], str], max_repeats: int, *, is_json: bool = False
    ) -> None:
        self.hit, self.dropped, self._is_json = False, 0, is_json
        self._prompt = prompt
        self._max_repeats = max_repeats and max(2, max_repeats)  # once is not a repetition
        self._ids: list[int] = []
        self._texts: list[str] = []
        self._shown = 0
        # For each period: how many of the last tokens equal the token one period before.
        self._longest = _LONGEST_OF_JSON if is_json else _LONGEST_CYCLE
        self._runs = [0] * (self._longest + 1)
        self._is_requested = [False] * (self._longest + 1)
        self._closings: list[tuple[bool, bool]] = []

    def push(self, id: int, text: str, may_close: bool = True, may_end: bool = True) -> str:
        """The text that is certainly visible once a token is added.

        may_close, may_end: see `matching.Allowed`; what could have come in its place.
        """
        if self.hit:
            return ""
        self._ids.append(id)
        self._texts.append(text)
        self._closings.append((may_close, may_end))
        if not self._max_repeats:
            return self._shown_to(len(self._ids))
        for period in range(1, min(self._longest, len(self._ids) - 1) + 1):
            if self._ids[-1 - period] == id:
                self._runs[period] += 1
            else:
                self._runs[period] = 0
                self._is_requested[period] = False
        period = self._repeating()
        if period:
            self.hit = True
            end = len(self._ids) - self._runs[period]
            if self._is_json:
                end = end if self._separates(end) else self._before(end)
            else:  # the mark that closes the sentence is the first of the cycle if one preceded it
                end += self._texts[end].strip() in _CLOSING
            self.dropped = len(self._ids) - end
            return self._shown_to(end)
        open_run = max(map(self._open_run, range(len(self._runs))))
        return self._shown_to(self._before(len(self._ids) - open_run))

    def _before(self, token: int) -> int:
        """Of JSON, the comma before a token, if it is not shown and only layout is between."""
        at = token - 1
        while at > self._shown and not self._texts[at].strip('" \t\n'):
            at -= 1
        return at if self._is_json and at >= self._shown and self._separates(at) else token

    def _separates(self, token: int) -> bool:
        """Whether a token begins with a comma, or ends a text before one, where JSON's list or
        object could have been closed."""
        return self._closings[token][0] and self._texts[token].lstrip('" \t\n').startswith(",")

    def flush(self, rest: str) -> str:
        """The text held back and the rest of the text, at the end of the reply."""
        return "" if self.hit else self._shown_to(len(self._ids)) + rest

    def _open_run(self, period: int) -> int:
        return 0 if self._is_requested[period] else self._runs[period]

    def _repeating(self) -> int:
        """The period of the cycle to end; 0 if there is none."""
        for period in range(1, self._longest + 1):
            run = self._open_run(period)
            times = self._max_repeats if period <= _LONGEST_CYCLE else _LONG_REPEATS
            if run and run + period >= max(_FEWEST_TOKENS, times * period):
                repeated = "".join(self._texts[-run - period :])
                cycle = "".join(self._texts[-period:])
                could_end = any(
                    may_close or (may_end and '"' not in cycle)
                    for may_close, may_end in self._closings[-period:]
                )
                if could_end and not _asks_for(self._prompt(), repeated, cycle):
                    return period
                # So are the cycles that consist of several of this one.
                for multiple in range(period, self._longest + 1, period):
                    self._is_requested[multiple] = True
        return 0

    def _shown_to(self, token: int) -> str:
        """The text before a token that is held back."""
        text = "".join(self._texts[self._shown : token])
        self._shown = max(self._shown, token)
        return text


def _asks_for(prompt: str, repeated: str, cycle: str) -> bool:
    """Whether a prompt asks for the repetition.

    repeated: several cycles in a row; cycle: one of them, with any beginning.
    """
    words = _WORD.findall(repeated.casefold())[1:-1]  # a word may be cut in two at the ends
    if not words:
        return any(2 * turned in prompt for turned in _turns(cycle))
    size = next(n for n in range(1, len(words) + 1) if words[n:] == words[:-n])
    prompt_words = _WORD.findall(prompt.casefold())
    wanted = 1 if _ASKING.intersection(prompt_words) else 2
    phrases = [wanted * turned for turned in _turns(words[:size])]
    length = wanted * size
    return any(
        prompt_words[start : start + length] in phrases for start in range(len(prompt_words))
    )


def _turns(cycle: _Cycle) -> Iterator[_Cycle]:
    """The cycle rotated to each of its positions."""
    for start in range(len(cycle)):
        yield cycle[start:] + cycle[:start]
