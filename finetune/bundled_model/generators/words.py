"""Label words drawn at random, tables as data, and the choice of held-out content.

Invariant: the label words of the evaluation sets, and a fraction of all others by their hash (see
`content.is_kept_out`), are not used in training. Whether a content is held out depends only on its
own words, so every generator agrees.
"""

import random
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from chatapp.tasks.evaluation.gpt3_tasks import own_words
from finetune.data.split import is_held_out, text_key


@cache
def table(name: str) -> dict[str, Any]:
    """The table of that name: a TOML file next to this module."""
    source = files("finetune.bundled_model.generators").joinpath("tables", f"{name}.toml")
    return tomllib.loads(source.read_text(encoding="utf-8"))


def is_kept_out(content: object, share: float) -> bool:
    """Whether content is held out: by its hash, so it never changes sides."""
    return is_held_out(text_key(repr(content)), share)


KEPT_OUT = 0.15

_ONSETS = "b bl br d dr f fl fr g gl gr k kl l m n p pl pr r s sk sl sn st t tr v w z".split()
_VOWELS = "a e i o u oo ee".split()
_CODAS = "b ck d f g l m n nd nk p rk rt s sh st t x".split()


def made_up_word(draw: random.Random, syllables: int = 1) -> str:
    """A word that does not exist in English but could, such as "blick"."""
    parts = [draw.choice(_ONSETS) + draw.choice(_VOWELS) for _ in range(syllables)]
    return "".join(parts) + draw.choice(_CODAS)


@cache
def _words(kept_out: bool) -> list[str]:
    topics = table("topics")
    topic_words = " ".join([*topics["train"].values(), *topics["held_out"].values()]).split()
    never = set(table("layouts")["evaluation_labels"].split())
    words = sorted({*own_words(), *(word.lower() for word in topic_words)} - never)
    return [word for word in words if is_kept_out(word, KEPT_OUT) == kept_out]


def draw_labels(draw: random.Random, count: int, *, kept_out: bool = False) -> list[str]:
    """`count` different labels of one kind: words, made-up words, letters or numbers.

    kept_out: held-out labels, which are only words.
    """
    chance = 0.0 if kept_out else draw.random()
    if chance < 0.6:
        return draw.sample(_words(kept_out), count)
    if chance < 0.7:
        return [word.capitalize() for word in draw.sample(_words(False), count)]
    if chance < 0.85:
        words: set[str] = set()
        while len(words) < count:
            word = made_up_word(draw, draw.choice((1, 1, 2)))
            if not is_kept_out(word, KEPT_OUT):
                words.add(word)
        return draw.sample(sorted(words), count)
    if chance < 0.95:
        return draw.sample("ABCDEFGHIJKLMNOPQRSTUVWXYZ", count)
    return [str(number) for number in draw.sample(range(10), count)]
