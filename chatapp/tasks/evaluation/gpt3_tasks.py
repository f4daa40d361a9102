"""The arithmetic and word-scrambling tasks of the GPT-3 paper, generated from a seed.

The shapes are those of the files published with the paper (Brown et al. 2020, sections 3.9.1 and
3.9.2, appendix G).

Invariant: the same task, number, seed and words give the same items, and all items of a call
differ. The list of common English words never changes, because that would change the generated
tasks.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path

from chatapp.common.userfiles import read_required
from chatapp.rows.examples import Example, Pool, PromptError
from chatapp.tasks.files.promptfile import PromptFile


def own_words() -> list[str]:
    """Common English words, of `words.txt`."""
    return files("chatapp.tasks.evaluation").joinpath("words.txt").read_text("utf-8").split()


def read_words(path: Path) -> list[str]:
    """Words from a file, separated by white space. Raises PromptError."""
    return read_required(path, PromptError).split()


_DIGITS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
_SIGNS: dict[str, tuple[str, str, Callable[[int, int], int]]] = {
    "+": ("plus", "addition", lambda a, b: a + b),
    "-": ("minus", "subtraction", lambda a, b: a - b),
    "x": ("times", "multiplication", lambda a, b: a * b),
}
_INSERTED = " .,;:!?/-'\""
_SHORTEST, _LONGEST = 5, 14  # letters; the paper: more than 4 and fewer than 15

# Consecutive draws of earlier items after which a task counts as exhausted.
_PATIENCE = 10_000


def _binary(digits: int, sign: str, draw: random.Random) -> Example:
    """Both numbers uniform from 0 to the largest with this many digits, as in the paper."""
    name, _, compute = _SIGNS[sign]
    first, second = draw.randrange(10**digits), draw.randrange(10**digits)
    return _question(f"{first} {name} {second}", compute(first, second))


def _composite(draw: random.Random) -> Example:
    """(9 + 8) * 2: three digits from 1 to 9 and two of +, - and *."""
    operations = {"+": _SIGNS["+"][2], "-": _SIGNS["-"][2], "*": _SIGNS["x"][2]}
    a, b, c = (draw.randrange(1, 10) for _ in range(3))
    inner, outer = (draw.choice(sorted(operations)) for _ in range(2))
    value = operations[outer](operations[inner](a, b), c)
    return _question(f"({a} {inner} {b}) {outer} {c}", value)


def _question(expression: str, value: int) -> Example:
    return Example(f"Q: What is {expression}?\n\nA:", str(value))


def _cycled(word: str, draw: random.Random) -> str:
    cut = draw.randrange(1, len(word))
    return word[cut:] + word[:cut]


def _anagram(fixed: int, word: str, draw: random.Random) -> str:
    """All except the first and last `kept` letters shuffled."""
    middle = list(word[fixed:-fixed])
    draw.shuffle(middle)
    return word[:fixed] + "".join(middle) + word[-fixed:]


def _inserted(word: str, draw: random.Random) -> str:
    """A mark or a space after each letter except the last."""
    return "".join(letter + draw.choice(_INSERTED) for letter in word[:-1]) + word[-1]


def _reversed(word: str, draw: random.Random) -> str:
    return word[::-1]


_ARITHMETIC: dict[str, tuple[str, Callable[[random.Random], Example]]] = {
    **{
        f"{digits}D{sign}": (
            f"{_DIGITS[digits]}-digit {_SIGNS[sign][1]}",
            partial(_binary, digits, sign),
        )
        for sign in "+-"
        for digits in range(2, 7)
    },
    "2Dx": ("two-digit multiplication", partial(_binary, 2, "x")),
    "1DC": ("one-digit composite", _composite),
}
_SCRAMBLING: dict[str, tuple[str, Callable[[str, random.Random], str]]] = {
    "CL": ("cycle letters in word", _cycled),
    "A1": ("anagrams of all but the first and last letters", partial(_anagram, 1)),
    "A2": ("anagrams of all but the first and last two letters", partial(_anagram, 2)),
    "RI": ("random insertion in word", _inserted),
    "RW": ("reversed words", _reversed),
}
TASKS = {name: task[0] for name, task in (_ARITHMETIC | _SCRAMBLING).items()}
"""A description of each task, by the paper's short names ("x" for the multiplication sign)."""


def generate(name: str, n: int, seed: int, words: Sequence[str] = ()) -> list[Example]:
    """n items of a task, no two with the same input (nor, of words, with the same word).

    words: to scramble; by default the program's list of common English words. Arithmetic ignores
    them. Raises PromptError for an unknown task and when fewer items exist than requested.
    """
    if name not in TASKS:
        raise PromptError(f"there is no task {name!r}; there are {', '.join(TASKS)}")
    draw = random.Random(f"{name} {seed}")
    drawn = _sums(name, draw) if name in _ARITHMETIC else _scrambled(name, words, draw)
    items = dict(zip(drawn, range(n), strict=False))
    if len(items) < n:
        hint = "; name a file of more words" if name in _SCRAMBLING else ""
        raise PromptError(f"the task {name} gives {len(items)} different items, not {n}{hint}")
    return list(items)


def _sums(name: str, draw: random.Random) -> Iterator[Example]:
    _, make = _ARITHMETIC[name]
    seen: set[str] = set()
    repeats = 0
    while repeats < _PATIENCE:
        item = make(draw)
        if item.input in seen:
            repeats += 1
            continue
        repeats = 0
        seen.add(item.input)
        yield item


def _scrambled(name: str, words: Sequence[str], draw: random.Random) -> Iterator[Example]:
    _, scramble = _SCRAMBLING[name]
    lowered = (word for word in words or own_words() if word.isalpha() and word.islower())
    usable = sorted({word for word in lowered if _SHORTEST <= len(word) <= _LONGEST})
    draw.shuffle(usable)
    for word in usable:
        # A word whose middle is one letter, such as "queen" in A2, never changes.
        tries = (scramble(word, draw) for _ in range(20))
        changed = next((scrambled for scrambled in tries if scrambled != word), None)
        if changed is not None:
            request = "Please unscramble the letters into a word, and write that word:"
            yield Example(f"{request}\n{changed} =", word)


def task_prompt(name: str, pool: Sequence[Example]) -> PromptFile:
    """The prompt of a task: unchanged items with an empty line between them."""
    return PromptFile(
        path=Path(name),
        description=TASKS[name],
        input_prefix="",
        output_prefix="",
        stop=("\n",),
        metrics=("exact_match",),
        pool=Pool([item.input for item in pool], [item.output for item in pool]),
        generate={"temperature": 0.0, "max_tokens": 24},
    )


def published_row(item: Example) -> dict[str, str]:
    """An item as a row of the published files, the completion with its space."""
    return {"context": item.input, "completion": " " + item.output}
