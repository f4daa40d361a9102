"""Tables, the places in their wordings, words that do not exist, and what is held out.

Invariant: the hash of a content alone decides whether it is held out, so every generator agrees.
"""

import random
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from finetune.data.split import is_held_out, text_key

Fields = dict[str, str]
"""The values inserted into a wording, by name."""

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


@cache
def persons() -> list[str]:
    """The first names of the short stories."""
    stories = table("language")["stories"]
    return [*stories["he"], *stories["she"]]


def filled(wording: str, fields: Fields) -> str:
    """A wording with its fields inserted; inserted text is not parsed again."""
    return re.sub(r"\{(\w+)\}", lambda place: fields.get(place[1], place[0]), wording)


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
