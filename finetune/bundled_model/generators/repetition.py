"""Texts that repeat themselves: what attention needs to learn before any demonstration helps.

A model that continues a sequence as it went on before (an induction head, Olsson et al. 2022)
can copy a label; these rows teach it from many labels a row.

Keep: sequences are random, so that nothing but the repetition predicts them.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from finetune.bundled_model.generators.labels import made_up_word


def _items(draw: random.Random, words: Sequence[str], sentences: Sequence[str]) -> list[str]:
    """Some things in a row: words, made-up words, numbers, or the words of a sentence."""
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
    """A sequence once, and then again: one given and one answer."""
    items = _items(draw, words, sentences)
    between = draw.choice((" ", " ", "\n", ", "))
    gap = draw.choice(("\n", "\n\n", between))
    once = between.join(items)
    times = draw.choice((1, 1, 2, 3))
    return [once, (gap.rstrip(" ") + (" " if gap.endswith(" ") else "") + once) * times]


def looked_up(draw: random.Random, words: Sequence[str]) -> list[str]:
    """Pairs to remember, then the same again in another order, each asked for by its first."""
    count = draw.randint(2, 8)
    keys = draw.sample(words, count)
    if draw.random() < 0.3:
        keys = sorted({made_up_word(draw, 2) for _ in keys})
    values = draw.sample(words, draw.choice((2, 3, len(keys))))
    pairs = [(key, draw.choice(values)) for key in keys]
    mark, end = draw.choice((":", " =", " ->", " =>", "\nA:")), draw.choice(("\n", "\n", "\n\n"))
    given = "".join(f"{key}{mark} {value}{end}" for key, value in pairs)
    parts: list[str] = []
    for _ in range(draw.randint(1, 3)):
        for key, value in draw.sample(pairs, len(pairs)):
            parts += [f"{given}{key}{mark}", f" {value}\n"]
            given = end[1:]
    return parts


def rows(
    words: Sequence[str], sentences: Sequence[str], count: int, seed: int
) -> Iterator[dict[str, Any]]:
    """`count` rows of `parts`."""
    draw = random.Random(seed)
    for _ in range(count):
        chosen = draw.random() < 0.6
        yield {"parts": repeated(draw, words, sentences) if chosen else looked_up(draw, words)}
