"""Openings of talks, with replies by rules that refer to their content.

In talks of people the reply to an opener is one of hundreds of suitable ones, which teaches a small
model the most common one, whatever the opener. The rules of tables/openers.toml give each kind of
opener a few replies, most of which name what the opener names.

Invariant: an opener is the first message of a training talk, never of a held-out one.
"""

import random
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from finetune.bundled_model.generators.dialogues import Asides, Turns, chat_row, typed
from finetune.bundled_model.generators.tasks import filled
from finetune.bundled_model.generators.words import table

_SENTENCE = re.compile(r"[^.?!]+[.?!]*")
_LONGEST_NAME = 6
"""Words of a name; more would be half of a sentence."""


@cache
def _kinds() -> list[tuple[re.Pattern[str], tuple[str, ...]]]:
    kinds = table("openers")["kind"]
    return [(re.compile(kind["pattern"], re.IGNORECASE), tuple(kind["replies"])) for kind in kinds]


def replies_to(opener: str) -> list[str]:
    """The replies that fit an opener: to its last question, or without one to its last sentence.
    Empty if other generators reply to it.
    """
    sentences = [sentence.strip() for sentence in _SENTENCE.findall(opener) if sentence.strip()]
    if not sentences:
        return []
    questions = [sentence for sentence in sentences if sentence.endswith("?")]
    sentence = (questions or sentences)[-1]
    for pattern, replies in _kinds():
        match = pattern.search(sentence)
        if match is None:
            continue
        name = _name(match.groupdict().get("x") or "")
        fitting = [filled(reply, {"x": name}) for reply in replies if name or "{x}" not in reply]
        if fitting or not replies:
            return fitting
    return []


def _name(text: str) -> str:
    """The name in a text, without the words around it; empty if there is none."""
    rules = table("openers")
    text = re.sub(r"\B'|'\B|\"", "", text).strip()
    cut = None
    while cut != text:
        cut = text
        text = re.sub(rf"^{rules['before']}", "", text, flags=re.IGNORECASE)
        text = re.sub(rf"{rules['after']}$", "", text, flags=re.IGNORECASE)
    if len(text.split()) > _LONGEST_NAME or re.fullmatch(rules["vague"], text, re.IGNORECASE):
        return ""
    return _turned_round(text)


_TURNED = {"your": "my", "my": "your", "you": "me", "me": "you", "i": "you", "our": "your"}


def _turned_round(text: str) -> str:
    """A text from the other speaker's perspective."""
    return re.sub(r"[A-Za-z']+", lambda match: _TURNED.get(match[0].lower(), match[0]), text)


def rows(openers: Sequence[str], asides: Asides, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield `count` chats that begin with an opener and its reply, some with one more turn.

    asides: questions and the replies to any of them.
    """
    answered = [(opener, replies) for opener in openers if (replies := replies_to(opener))]
    draw = random.Random(seed)
    for _ in range(count):
        turns: Turns = []
        for _ in range(draw.choice((1, 1, 1, 2))):
            opener, replies = draw.choice(answered)
            turns += [opener, draw.choice(replies)]
        if draw.random() < 0.3:
            openings, others = draw.choice(asides)
            turns += [typed(draw, draw.choice(openings)), draw.choice(others)]
        yield chat_row(turns)
