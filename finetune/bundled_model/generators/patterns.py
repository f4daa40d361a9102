"""Classes of texts that differ in form, and texts that repeat themselves.

A pattern maps a class to a function that makes a text of that class from a draw and some words. A
model that continues a sequence as before (an induction head, Olsson et al. 2022) can copy a label;
repeating rows teach it from many labels per row.

Invariants: the classes of a pattern differ only in form; their words are drawn alike. Repeated
sequences are random, so that only the repetition predicts them.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from finetune.bundled_model.generators.words import made_up_word

Maker = Callable[[random.Random, Sequence[str]], str]
Pattern = dict[str, Maker]


def _some_words(draw: random.Random, words: Sequence[str], least: int = 1, most: int = 4) -> str:
    return " ".join(draw.choice(words) for _ in range(draw.randint(least, most)))


def _with_mark(mark: str) -> Maker:
    return lambda draw, words: _some_words(draw, words) + mark


def _between(opening: str, closing: str) -> Maker:
    return lambda draw, words: opening + _some_words(draw, words) + closing


def _opening(first: str) -> Maker:
    return lambda draw, words: f"{first} {_some_words(draw, words)}"


def _ending(last: str) -> Maker:
    return lambda draw, words: f"{_some_words(draw, words)} {last}"


def _containing(inner: str) -> Maker:
    return lambda draw, words: (
        f"{_some_words(draw, words, 1, 2)} {inner} {_some_words(draw, words, 1, 2)}"
    )


def _number(least: int, most: int, step: int = 1) -> Maker:
    return lambda draw, words: str(draw.randrange(least, most, step))


def _words_in_all(count: int) -> Maker:
    return lambda draw, words: _some_words(draw, words, count, count)


def _letter_first(letters: str) -> Maker:
    return lambda draw, words: draw.choice([w for w in words if w[0] in letters] or [letters[0]])


def _letter_last(letters: str) -> Maker:
    return lambda draw, words: draw.choice([w for w in words if w[-1] in letters] or [letters[-1]])


def _twice(draw: random.Random, words: Sequence[str]) -> str:
    word = draw.choice(words)
    return f"{word} {word}"


def _pair(draw: random.Random, words: Sequence[str]) -> str:
    return " ".join(draw.sample(words, 2))


PATTERNS: dict[str, Pattern] = {
    "mark": {mark: _with_mark(mark) for mark in "?!.,;:"},
    "symbol": {sign: _containing(sign) for sign in "# @ * + = % & $".split()},
    "subject": {word: _opening(word) for word in "I you he she we they it".split()},
    "opening": {word: _opening(word) for word in "the my some every no this that our".split()},
    "closing": {word: _ending(word) for word in "now today again here there alone".split()},
    "joined": {word: _containing(word) for word in "and or but not with for in of".split()},
    "question word": {
        word: _opening(word) for word in "who what where when why how which whose".split()
    },
    "politeness": {word: _ending(word) for word in "please thanks sir friend".split()},
    "length": {str(count): _words_in_all(count) for count in (1, 3, 6)},
    "first letter": {part: _letter_first(part) for part in ("abc", "def", "hil", "mnop", "st")},
    "last letter": {part: _letter_last(part) for part in ("e", "s", "n", "r", "t", "y")},
    "size": {"small": _number(0, 10), "middle": _number(100, 1000), "large": _number(10**4, 10**5)},
    "last digit": {"0": _number(10, 1000, 10), "5": _number(15, 1000, 10)},
    "capitals": {
        "lower": lambda draw, words: _some_words(draw, words).lower(),
        "upper": lambda draw, words: _some_words(draw, words).upper(),
        "title": lambda draw, words: _some_words(draw, words).title(),
    },
    "sign or word": {
        "number": _number(0, 10_000),
        "word": _words_in_all(1),
        "both": lambda draw, words: f"{draw.choice(words)} {draw.randrange(100)}",
    },
}

HELD_OUT: dict[str, Pattern] = {
    "repetition": {"twice": _twice, "different": _pair},
    "brackets": {signs: _between(*signs) for signs in ("()", "[]", "<>", "{}")},
    "time word": {word: _opening(word) for word in "yesterday tomorrow always never".split()},
    "decade": {
        "twenties": _number(20, 30),
        "fifties": _number(50, 60),
        "nineties": _number(90, 100),
    },
}


def _items(draw: random.Random, words: Sequence[str], sentences: Sequence[str]) -> list[str]:
    """Some items: words, made-up words, numbers, or the words of a sentence."""
    count = draw.randint(3, 24)
    match draw.choice(("words", "words", "made up", "numbers", "sentence", "mixed")):
        case "words":
            return [draw.choice(words) for _ in range(count)]
        case "made up":
            return [made_up_word(draw, draw.choice((1, 2))) for _ in range(count // 2 + 2)]
        case "numbers":
            return [str(draw.randrange(10 ** draw.randint(1, 4))) for _ in range(count // 2 + 2)]
        case "sentence":
            return draw.choice(sentences).split()
    return [draw.choice((draw.choice(words), made_up_word(draw))) for _ in range(count)]


def repeated(draw: random.Random, words: Sequence[str], sentences: Sequence[str]) -> list[str]:
    """A sequence twice: one prompt and one answer."""
    items = _items(draw, words, sentences)
    between = draw.choice((" ", " ", "\n", ", "))
    gap = draw.choice(("\n", "\n\n", between))
    once = between.join(items)
    times = draw.choice((1, 1, 2, 3))
    return [once, (gap.rstrip(" ") + (" " if gap.endswith(" ") else "") + once) * times]


def looked_up(draw: random.Random, words: Sequence[str]) -> list[str]:
    """Pairs to remember, then the same in another order, each to be completed from its first
    element.
    """
    count = draw.randint(2, 8)
    keys = draw.sample(words, count)
    if draw.random() < 0.3:
        keys = sorted({made_up_word(draw, 2) for _ in keys})
    values = draw.sample(words, draw.choice((2, 3, len(keys))))
    pairs = [(key, draw.choice(values)) for key in keys]
    mark, end = draw.choice((":", " =", " ->", " =>", "\nA:")), draw.choice(("\n", "\n", "\n\n"))
    prompt = "".join(f"{key}{mark} {value}{end}" for key, value in pairs)
    parts: list[str] = []
    for _ in range(draw.randint(1, 3)):
        for key, value in draw.sample(pairs, len(pairs)):
            parts += [f"{prompt}{key}{mark}", f" {value}\n"]
            prompt = end[1:]
    return parts


def rows(
    words: Sequence[str], sentences: Sequence[str], count: int, seed: int
) -> Iterator[dict[str, Any]]:
    """`count` rows of `parts`."""
    draw = random.Random(seed)
    for _ in range(count):
        chosen = draw.random() < 0.6
        yield {"parts": repeated(draw, words, sentences) if chosen else looked_up(draw, words)}
