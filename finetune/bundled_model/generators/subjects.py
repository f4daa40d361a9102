"""Short stories that stay with their subject, and chats that ask for one.

A larger model writes them (see `teacher`). In half of the rows another subject of the same kind
takes the place of the story's own, so that the subject is copied from the request.

Invariant: a story names its subject at its beginning and at least three times, and ends.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from finetune.bundled_model.generators.dialogues import Asides, Turns, aside, chat_row, typed
from finetune.bundled_model.generators.tasks import QuestionTask, filled
from finetune.bundled_model.generators.words import table

_WORDS = (35, 150)
_NAMED = 3
_REPLACED = 0.5
# A list, a heading, a placeholder, or the writer's own voice.
_BAD = re.compile(r"[*#\[\]<>|]|\b(?:Title|Here is|Here's|As an AI|assistant)\b")


@dataclass(frozen=True, slots=True)
class TaughtStory:
    """A story about a subject of a kind, as in tables/subjects.toml."""

    subject: str
    kind: str
    story: str


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


def good_story(text: str, subject: str) -> str:
    """A larger model's whole reply as one paragraph; "" if it is not good enough for training."""
    story = " ".join(text.split())
    sentences = re.split(r"(?<=[.!?])\s", story)
    names = len(re.findall(rf"\b{subject}(?:e?s)?\b", story, re.IGNORECASE))
    begins_with_it = any(subject in sentence.lower() for sentence in sentences[:2])
    right_length = _WORDS[0] <= len(story.split()) <= _WORDS[1]
    ends = story.endswith((".", "!", '."', '!"'))
    good = names >= _NAMED and begins_with_it and right_length and ends and len(sentences) >= 4
    return story if good and not _BAD.search(story) else ""


def about(story: str, subject: str, other: str) -> str:
    """The story with another subject in the place of its own, capitals and articles kept right."""

    def replaced(match: re.Match[str]) -> str:
        noun = other.capitalize() if match["noun"][0].isupper() else other
        article = match["article"]
        if article:
            right = with_article(other).split()[0]
            noun = f"{right.capitalize() if article[0].isupper() else right} {noun}"
        plural = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
        return noun + (plural if match["plural"] else "")

    pattern = rf"\b(?:(?P<article>an?) )?(?P<noun>{subject})(?P<plural>e?s)?\b"
    return re.sub(pattern, replaced, story, flags=re.IGNORECASE)


def rows(
    stories: Sequence[TaughtStory],
    asides: Asides,
    tasks: Sequence[QuestionTask],
    count: int,
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Yield `count` chats of one story or two, some after a turn on something else."""
    draw = random.Random(seed)
    wordings = table("subjects")
    for _ in range(count):
        turns: Turns = aside(draw, asides, tasks) if draw.random() < 0.15 else []
        for number in range(draw.choice((1, 1, 1, 2))):
            row = draw.choice(stories)
            subject, story = row.subject, row.story
            if draw.random() < _REPLACED:
                subject = draw.choice(subjects()[row.kind])
                story = about(story, row.subject, subject)
            ask = wordings["again" if number else "ask"]
            turns += [typed(draw, filled(draw.choice(ask), {"x": with_article(subject)})), story]
        yield chat_row(turns)
