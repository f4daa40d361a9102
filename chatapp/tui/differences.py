"""What differs between two texts, word by word.

Keep: a span never cuts a word, so that what is marked can be read by itself.
"""

import re
from difflib import SequenceMatcher
from typing import NamedTuple

Span = tuple[int, int]
"""Where a piece of a text begins and ends, in characters."""

_ALIKE = 1 / 3
"""The least share of common words with which it is worth marking the others."""


class Difference(NamedTuple):
    """The spans of two texts that the other has not; none where little is common. And in words."""

    left: tuple[Span, ...]
    right: tuple[Span, ...]
    words: str


def difference(left: str, right: str) -> Difference:
    """Compare two texts; white space does not count."""
    words = [list(re.finditer(r"\w+|[^\w\s]", text)) for text in (left, right)]
    before, after = ([word.group() for word in side] for side in words)
    matcher = SequenceMatcher(None, before, after)
    if before == after:
        return Difference((), (), "Both replies are the same.")
    if matcher.ratio() < _ALIKE:
        return Difference((), (), "The two replies have little in common.")
    spans: tuple[list[Span], list[Span]] = ([], [])
    counts = [0, 0]
    for tag, *bounds in matcher.get_opcodes():
        for side, (first, last) in enumerate((bounds[:2], bounds[2:])):
            if tag != "equal" and first < last:
                spans[side].append((words[side][first].start(), words[side][last - 1].end()))
                counts[side] += last - first
    told = ", ".join(
        f"{count} of {len(side)} words at the {name}"
        for count, side, name in zip(counts, words, ("left", "right"), strict=True)
    )
    return Difference(tuple(spans[0]), tuple(spans[1]), f"Marked is what differs: {told}.")
