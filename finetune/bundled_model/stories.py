"""Talks of people and stories, most for training and some held out.

Invariant: the text itself decides whether it is held out, so no training file ever contains it:
talks by their first message, stories by their title.
"""

import random
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from finetune.bundled_model.generators.words import is_kept_out
from finetune.bundled_model.sources import chat, clean, packed_rows, passages

# The fractions of held-out talks and stories.
KEPT_OUT_TALKS, KEPT_OUT_STORIES = 0.15, 0.05

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def stories(path: Path, *, kept_out: bool = False) -> Iterator[dict[str, Any]]:
    """Fairy tales or short stories, cut at sentences: those for training, or the held-out ones."""
    for row in packed_rows(path):
        if is_kept_out(["story", row["title"]], KEPT_OUT_STORIES) == kept_out:
            yield from passages(_SENTENCE_END.split(clean(row["text"])), " ")


def talks(
    path: Path, names: Sequence[str], seed: int, *, kept_out: bool = False
) -> Iterator[dict[str, Any]]:
    """Talks of two people, the second as the assistant: those for training, or the held-out ones.

    Turns are texts, or pairs of a speaker and a text. names: fill the places for speakers' names; a
    talk ends before a turn with a place for something else.
    """
    draw = random.Random(seed)
    for row in packed_rows(path):
        turns = [turn if isinstance(turn, str) else turn[1] for turn in row["turns"]]
        if not turns or is_first_message_kept_out(turns[0]) != kept_out:
            continue
        both = draw.sample(names, 2)
        texts = (
            written_out(with_names(clean(turn), both, number % 2))
            for number, turn in enumerate(turns)
        )
        whole = list(takewhile(lambda text: text and not _PLACE.search(text), texts))
        if len(whole) > 1:
            yield chat(whole)


def is_first_message_kept_out(text: str) -> bool:
    """Whether talks that begin with this message are held out, in any spelling."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return is_kept_out(["first message", words], KEPT_OUT_TALKS)


_PLACE = re.compile(r"[\[(][^\])]*[\])]")
_NAME_PLACE = re.compile(
    r"[\[(](?:user ?(?P<number>[12])(?:'s)?(?: name)?|(?:your |insert )?name|username)[\])]", re.I
)
_OWN = re.compile(r"(?:I'm|I am|name is|name's|call me|this is)\s*$", re.I)


def with_names(text: str, names: Sequence[str], speaker: int) -> str:
    """Fill the places for the two speakers' names in a text.

    names: of both speakers. speaker: 0 or 1, the one who speaks. A place without a speaker is the
    speaker's own after words such as "I'm", else the other's.
    """

    def name(match: re.Match[str]) -> str:
        if match["number"]:
            return names[int(match["number"]) - 1]
        own = _OWN.search(text[: match.start()])
        return names[speaker if own else 1 - speaker]

    return _NAME_PLACE.sub(name, text)


def written_out(text: str) -> str:
    """Turn a hastily typed text into sentences: capitals at the beginning, a mark at the end."""
    text = re.sub(r"\bi\b(?=[ ',.?!]|$)", "I", text)
    text = re.sub(r"(^|[.!?] +)([a-z])", lambda match: match[1] + match[2].upper(), text)
    return text + "." if text and text[-1].isalnum() else text
