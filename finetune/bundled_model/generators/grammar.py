"""Pairs of sentences with and without a mistake of the kind in the GPT-3 paper.

Invariant: the two sentences of a pair differ by one mistake.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from finetune.bundled_model.generators.words import table


@dataclass(frozen=True, slots=True)
class Pair:
    """A wrong and a correct sentence."""

    wrong: str
    right: str


@dataclass(frozen=True, slots=True)
class _Parts:
    """The vocabulary of sentences. one, many: persons; forms: see tables/language.toml."""

    one: str
    many: str
    verb: str
    past: str
    participle: str
    third: str
    wrong_past: str
    rest: str


def _wrong_past(p: _Parts) -> Pair:
    return Pair(f"I {p.wrong_past} {p.rest}.", f"I {p.past} {p.rest}.")


def _wrong_past_of_one(p: _Parts) -> Pair:
    return Pair(f"{p.one} {p.wrong_past} {p.rest}.", f"{p.one} {p.past} {p.rest}.")


def _double_past(p: _Parts) -> Pair:
    return Pair(f"{p.one} did not {p.past} {p.rest}.", f"{p.one} did not {p.verb} {p.rest}.")


def _third_person(p: _Parts) -> Pair:
    return Pair(f"{p.one} {p.verb} {p.rest}.", f"{p.one} {p.third} {p.rest}.")


def _many(p: _Parts) -> Pair:
    return Pair(f"{p.many} {p.third} {p.rest}.", f"{p.many} {p.verb} {p.rest}.")


def _was(p: _Parts) -> Pair:
    return Pair(f"{p.many} was there.", f"{p.many} were there.")


def _participle(p: _Parts) -> Pair:
    return Pair(f"I have {p.past} {p.rest}.", f"I have {p.participle} {p.rest}.")


def _to_past(p: _Parts) -> Pair:
    return Pair(f"{p.one} wants to {p.past} {p.rest}.", f"{p.one} wants to {p.verb} {p.rest}.")


def _article(p: _Parts) -> Pair:
    rest = p.rest.replace("an ", "a ", 1) if p.rest.startswith("an ") else p.rest
    return Pair(f"{p.one} {p.past} {rest}.", f"{p.one} {p.past} {p.rest}.")


def _has(p: _Parts) -> Pair:
    return Pair(f"{p.one} have {p.participle} {p.rest}.", f"{p.one} has {p.participle} {p.rest}.")


def _nothing_wrong(p: _Parts) -> Pair:
    return Pair(f"{p.one} {p.past} {p.rest}.", f"{p.one} {p.past} {p.rest}.")


_MISTAKES: tuple[Callable[[_Parts], Pair], ...] = (
    _wrong_past,
    _wrong_past_of_one,
    _double_past,
    _third_person,
    _many,
    _was,
    _participle,
    _to_past,
    _article,
    _has,
    _nothing_wrong,
)


def sentence(draw: random.Random) -> Pair:
    """A sentence with one mistake, occasionally with none."""
    language = table("language")
    verb = draw.choice(sorted(language["verbs"]))
    past, participle, third, wrong_past = language["verbs"][verb]
    parts = _Parts(
        one=draw.choice(language["people"]["one"]),
        many=draw.choice(language["people"]["many"]),
        verb=verb,
        past=past,
        participle=participle,
        third=third,
        wrong_past=wrong_past,
        rest=draw.choice(language["objects"][verb]),
    )
    return draw.choice(_MISTAKES)(parts)
