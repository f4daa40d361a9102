"""Chats in which somebody says who they are or what they like, and asks for it later.

Invariant: nobody here has a held-out name (questions in between may contain one). Half of the names
are made up, so that a name must be copied from the chat. `dialogues.name` and `dialogues.liking`
are the same talks with the few names of the stories.
"""

import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from finetune.bundled_model.generators.dialogues import Asides, Turns, aside, chat_row, typed
from finetune.bundled_model.generators.tasks import QuestionTask, filled, word
from finetune.bundled_model.generators.words import is_kept_out, made_up_word, table

KEPT_OUT = 0.1

_STATEMENTS = (
    "My name is {x}.",
    "I am {x}.",
    "I'm {x}.",
    "Hi, I'm {x}.",
    "Hello, my name is {x}.",
    "Hi! My name is {x}.",
    "Call me {x}.",
    "You can call me {x}.",
    "People call me {x}.",
    "This is {x}.",
    "{x} is my name.",
    "The name is {x}.",
)
_GREETED = ("Hello {x}! Nice to meet you.", "Hi {x}! How are you?", "Nice to meet you, {x}.")
_QUESTIONS = (
    "What is my name?",
    "What's my name?",
    "Do you know my name?",
    "Who am I?",
    "Do you remember my name?",
    "What am I called?",
    "Tell me my name.",
)
_NAMED = ("Your name is {x}.", "You are {x}.")

_LIKED = ("I like {x}.", "I love {x}.", "I really like {x}.", "I am fond of {x}.", "I enjoy {x}.")
_LIKED_TOO = ("{X}? That is nice.", "Oh, {x}! That is nice.")
_LIKING_QUESTIONS = (
    "What do I like?",
    "Do you remember what I like?",
    "What did I say I like?",
    "Tell me what I like.",
)


@cache
def names(*, kept_out: bool = False) -> list[str]:
    """First names: those for training, or the held-out ones."""
    entries: list[str] = table("people")["names"].split()
    return [name for name in entries if is_kept_out(["name", name], KEPT_OUT) == kept_out]


def _name(draw: random.Random) -> str:
    if draw.random() < 0.5:
        return draw.choice(names())
    while True:
        made_up = made_up_word(draw, draw.choice((1, 1, 2))).capitalize()
        if made_up not in names(kept_out=True):
            return made_up


def _thing(draw: random.Random) -> str:
    if draw.random() < 0.3:
        return word(draw)
    entries: list[str] = [part.strip() for part in table("people")["likes"].split("|")]
    return draw.choice(entries)


def rows(
    asides: Asides, tasks: Sequence[QuestionTask], count: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield `count` chats, with small talk and single questions between their turns.

    asides: questions and the replies to any of them.
    """
    draw = random.Random(seed)
    for _ in range(count):
        statements: list[Turns] = []
        questions: list[Turns] = []
        kinds = draw.choice(("name", "name", "liking", "both"))
        if kinds != "liking":
            who = _name(draw)
            statements.append(_turn(draw, _STATEMENTS, _GREETED, who))
            questions.append(_turn(draw, _QUESTIONS, _NAMED, who))
        if kinds != "name":
            thing = _thing(draw)
            statements.append(_turn(draw, _LIKED, _LIKED_TOO, thing))
            questions.append(_turn(draw, _LIKING_QUESTIONS, ("You like {x}.",), thing))
        draw.shuffle(questions)
        turns: Turns = []
        for pair in (*statements, *questions):
            for _ in range(draw.choice((0, 0, 0, 1, 2, 4))):
                turns += aside(draw, asides, tasks)
            turns += pair
        yield chat_row(turns)


def _turn(draw: random.Random, wordings: Sequence[str], replies: Sequence[str], what: str) -> Turns:
    fields = {"x": what, "X": what[0].upper() + what[1:]}
    statements, reply = (filled(draw.choice(texts), fields) for texts in (wordings, replies))
    return [typed(draw, statements), reply]
