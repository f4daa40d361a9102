"""Short stories that stay with their subject, and chats that ask for one.

A story is a plot of tables/plots.toml, a version of each of its sentences drawn.

Invariant: a story names its subject at least three times, and no subject of tables/last_look.toml.
"""

import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from finetune.bundled_model.generators.dialogues import Asides, Turns, aside, chat_row, typed
from finetune.bundled_model.generators.tasks import Fields, QuestionTask, filled
from finetune.bundled_model.generators.words import table

_NAMED = 3
_PRONOUNS = {
    "animal": [("it", "it", "its")],
    "person": [("he", "him", "his"), ("she", "her", "her")],
}
_SHE = {"queen", "princess", "witch", "fairy", "girl", "grandmother", "farm girl", "old woman"}
_HE = {
    "king",
    "prince",
    "knight",
    "wizard",
    "boy",
    "grandfather",
    "postman",
    "fisherman",
    "old man",
}


@cache
def subjects() -> dict[str, list[str]]:
    """The subjects by kind."""
    kinds: dict[str, str] = table("subjects")["kinds"]
    return {
        kind: [part.strip() for part in names.replace("\n", "").split("|")]
        for kind, names in kinds.items()
    }


def with_article(noun: str) -> str:
    """A noun with its indefinite article, by its first letters."""
    return f"an {noun}" if noun[0] in "aeiou" and not noun.startswith("uni") else f"a {noun}"


def story(draw: random.Random, kind: str, subject: str) -> str:
    """A story about a subject of a kind."""
    plots = table("plots")
    lines = draw.choice(plots["thing" if kind == "thing" else "living"])["lines"]
    fields = _fields(draw, kind, subject)
    while True:
        text = " ".join(draw.choice(versions) for versions in lines)
        if text.count("{x}") >= _NAMED:
            opening: str = draw.choice(plots["title"])
            return opening + filled(_with_articles(text, fields), fields)


def _fields(draw: random.Random, kind: str, subject: str) -> Fields:
    plots = table("plots")
    time = draw.choice(plots["times"])
    it, him, his = draw.choice(_pronouns(kind, subject))
    friends = [friend for friend in plots["friends"] if friend != subject]
    return {
        "x": subject,
        "s": it,
        "S": it.capitalize(),
        "o": him,
        "h": his,
        "n": draw.choice(plots["names"]),
        "f": draw.choice(friends),
        "p": draw.choice(plots["places"]),
        "t": draw.choice(plots["things"]),
        "w": time,
        "W": time.capitalize(),
        "q": draw.choice(plots["qualities"]),
    }


def _pronouns(kind: str, subject: str) -> list[tuple[str, str, str]]:
    pronouns = _PRONOUNS.get(kind, _PRONOUNS["person"])
    if subject in _HE:
        return pronouns[:1]
    return pronouns[1:] if subject in _SHE else pronouns


def _with_articles(text: str, fields: Fields) -> str:
    """The text with the right indefinite article in front of each field."""
    for name in "xfq":
        article = with_article(fields[name]).split()[0]
        text = text.replace(f"a {{{name}}}", f"{article} {{{name}}}")
        text = text.replace(f"A {{{name}}}", f"{article.capitalize()} {{{name}}}")
    return text


def rows(
    asides: Asides, tasks: Sequence[QuestionTask], count: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield `count` chats of one story or two, some after a turn on something else."""
    draw = random.Random(seed)
    wordings = table("subjects")
    for _ in range(count):
        turns: Turns = aside(draw, asides, tasks) if draw.random() < 0.15 else []
        for number in range(draw.choice((1, 1, 1, 2))):
            kind = draw.choice(sorted(subjects()))
            subject = draw.choice(subjects()[kind])
            ask = draw.choice(wordings["again" if number else "ask"])
            question = filled(ask, {"x": with_article(subject)})
            turns += [typed(draw, question), story(draw, kind, subject)]
        yield chat_row(turns)
