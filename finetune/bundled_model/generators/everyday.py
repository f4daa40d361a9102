"""Everyday small talk in whole sentences.

Invariant: a reply fits every wording of its message, so that it belongs to the meaning.
"""

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from finetune.bundled_model.generators.dialogues import Asides, Turns, chat_row, typed
from finetune.bundled_model.generators.words import table


@cache
def talks() -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Messages, in several wordings, and the replies to any of them."""
    return [(tuple(talk["said"]), tuple(talk["replies"])) for talk in table("everyday")["talk"]]


def rows(asides: Asides, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield `count` chats of one to five turns, some of them `asides`."""
    draw = random.Random(seed)
    for _ in range(count):
        turns: Turns = []
        for _ in range(draw.choice((1, 1, 2, 3, 5))):
            openings, replies = draw.choice(asides if draw.random() < 0.2 else talks())
            turns += [typed(draw, draw.choice(openings)), draw.choice(replies)]
        yield chat_row(turns)
