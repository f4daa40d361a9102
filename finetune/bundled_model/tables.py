"""Tables, the places in their wordings, words that do not exist, and what is held out.

Invariant: the hash of a content alone decides whether it is held out, so every generator agrees.
"""

import random
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from finetune.data.split import is_held_out, text_key

_ONSETS = "b bl br d dr f fl fr g gl gr k kl l m n p pl pr r s sk sl sn st t tr v w z".split()
_VOWELS = "a e i o u oo ee".split()
_CODAS = "b ck d f g l m n nd nk p rk rt s sh st t x".split()


@cache
def table(name: str) -> dict[str, Any]:
    """The table of that name in the folder `tables`."""
    source = Path(__file__).with_name("tables") / f"{name}.toml"
    return tomllib.loads(source.read_text(encoding="utf-8"))


@cache
def entries(text: str) -> list[str]:
    """The entries of a text, which has bars between them."""
    return [" ".join(entry.split()) for entry in text.split("|")]


class Fields(dict[str, str]):
    """What is inserted into the wordings of a row: a field is drawn when it is first named, and is
    then the same in all of them.

    lists: what a field is drawn from, by its name: a text or several, in which other fields may be
    named in braces, or a function of the fields. {X} is the field x with a capital at its
    beginning.
    """

    def __init__(
        self, draw: random.Random, lists: "Lists", known: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(known or {})
        self.draw, self.lists = draw, lists

    def __missing__(self, name: str) -> str:
        source = self.lists.get(name)
        if source is not None:
            self[name] = source(self) if callable(source) else self.fill(source)
            return self[name]
        if not name[0].isupper():
            raise KeyError(name)
        text = self[name[0].lower() + name[1:]]
        return text[0].upper() + text[1:]

    def fill(self, wording: str | Sequence[str]) -> str:
        """A wording, or one of several, with its fields; inserted text is not parsed again."""
        text = wording if isinstance(wording, str) else self.draw.choice(wording)
        return re.sub(r"\{(\w+)\}", lambda place: self[place[1]], text)


Lists = Mapping[str, str | Sequence[str] | Callable[[Fields], str]]


def filled(wording: str, fields: Mapping[str, str]) -> str:
    """A wording with some of its fields inserted; inserted text is not parsed again."""
    return re.sub(r"\{(\w+)\}", lambda place: fields.get(place[1], place[0]), wording)


def typed(draw: random.Random, question: str) -> str:
    """A question as people type it: in lower case, or without a mark at the end."""
    if draw.random() < 0.3:
        question = question.lower()
    return question.rstrip("?.") if draw.random() < 0.3 else question


def with_article(noun: str) -> str:
    """A noun with its indefinite article, by its first letters."""
    return f"an {noun}" if noun[0] in "aeiou" and not noun.startswith("uni") else f"a {noun}"


def made_up_word(draw: random.Random, syllables: int = 1) -> str:
    """A word that does not exist in English but could, such as "blick"."""
    parts = [draw.choice(_ONSETS) + draw.choice(_VOWELS) for _ in range(syllables)]
    return "".join(parts) + draw.choice(_CODAS)


def is_kept_out(content: object, share: float) -> bool:
    """Whether content is held out: by its hash, so it never changes sides."""
    return is_held_out(text_key(repr(content)), share)
