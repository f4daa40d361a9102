"""Questions that the bundled model cannot answer, and replies that admit it in a sentence.

Invariant: a held-out wording is in no training row, whatever it asks about.
"""

import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import cycle
from typing import Any

from finetune.bundled_model.generators.dialogues import Asides, Turns, aside, chat_row, typed
from finetune.bundled_model.generators.tasks import Fields, QuestionTask, filled
from finetune.bundled_model.generators.words import made_up_word, table

# The names are partly made up, so that the question decides, not the name.
_MADE_UP = 0.25
_LISTS = {
    "p": "people",
    "c": "places",
    "w": "works",
    "o": "groups",
    "e": "events",
    "t": "things",
    "g": "languages",
    "k": "code",
    "j": "jobs",
    "s": "sentences",
}
_NAMES = "pcwo"


def rows(
    asides: Asides, tasks: Sequence[QuestionTask], count: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield `count` chats that contain unanswerable questions among others.

    asides: questions and the replies to any of them.
    """
    draw = random.Random(seed)
    for _ in range(count):
        turns: Turns = []
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            for _ in range(draw.choice((0, 0, 0, 1, 2))):
                turns += aside(draw, asides, tasks)
            turns += declined(draw)
        yield chat_row(turns)


def declined(draw: random.Random) -> Turns:
    """A question in a training wording, and a reply that does not answer it."""
    kind = draw.choice(list(table("abstention")["kinds"].values()))
    fields = _fields(draw)
    reply = draw.choice(table("abstention")["replies"][kind["reply"]])
    return [typed(draw, filled(draw.choice(kind["ask"]), fields)), filled(reply, fields)]


def held_out_questions(count: int, seed: int) -> list[str]:
    """`count` different questions in held-out wordings, of the kinds in turn."""
    draw = random.Random(seed)
    questions: dict[str, None] = {}
    for kind in cycle(table("abstention")["kinds"].values()):
        if len(questions) == count:
            break
        questions[filled(draw.choice(kind["unseen"]), _fields(draw))] = None
    return list(questions)


def _fields(draw: random.Random) -> Fields:
    fields = {name: draw.choice(_entries(part)) for name, part in _LISTS.items()}
    for name in _NAMES:
        if draw.random() < _MADE_UP:
            fields[name] = made_up_word(draw, 2).capitalize()
    return fields | {"n": str(draw.randint(2, 999)), "d": str(draw.randint(1200, 2025))}


@cache
def _entries(part: str) -> list[str]:
    entries: list[str] = [entry.strip() for entry in table("abstention")[part].split("|")]
    return entries
