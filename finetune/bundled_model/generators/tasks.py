"""Single questions with one correct answer, by task: facts, spelling, counting, grammar, …

A task draws its problems; `tables/tasks.toml` and `tables/facts.toml` contain the wordings for
training and the held-out ones, `tables/wordings.toml` more for training.

Invariant: a problem that is held out, by its content or by its wording, is in no training row.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle

from chatapp.tasks.evaluation.gpt3_tasks import own_words
from finetune.bundled_model.generators import grammar
from finetune.bundled_model.generators.arithmetic import calculator, difference, product, sum_of_two
from finetune.bundled_model.generators.words import is_kept_out, made_up_word, table

Fields = dict[str, str]
"""The values inserted into a wording, by name."""

Make = Callable[[random.Random], tuple[Fields, str]]
"""Draws a problem: its fields and the answer."""

# The fraction of held-out problems.
KEPT_OUT = 0.1
# Draws of a held-out problem after which there are assumed to be no more.
_PATIENCE = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """A question in its wording, and the answer. given: only its changing part."""

    question: str
    answer: str
    given: str


@dataclass(frozen=True, slots=True)
class QuestionTask:
    """A task: its wordings and its problems.

    taught: all content is used in training, because it cannot be guessed (facts); instead, a
    wording of each problem is held out.
    """

    name: str
    ask: tuple[str, ...]
    unseen: tuple[str, ...]
    make: Make
    taught: bool = False

    def training(self, draw: random.Random) -> Problem:
        """A training problem."""
        while True:
            fields, answer = self.make(draw)
            wording = draw.choice(self.ask)
            if not self.keeps_out(fields, wording):
                return Problem(filled(wording, fields), answer, ", ".join(fields.values()))

    def held_out(self, count: int, seed: int, *, unseen: bool) -> list[Problem]:
        """At most `count` different held-out problems.

        unseen: in held-out wordings; else in training wordings.
        """
        draw = random.Random(f"{self.name} {seed}")
        problems: dict[str, Problem] = {}
        # There may be fewer facts than requested.
        for _ in range(_PATIENCE * count):
            if len(problems) == count:
                break
            fields, answer = self.make(draw)
            wording = draw.choice(self.unseen if unseen else self.ask)
            if (unseen and self.taught) or self.keeps_out(fields, wording):
                question = filled(wording, fields)
                problems[question] = Problem(question, answer, ", ".join(fields.values()))
        return list(problems.values())

    def keeps_out(self, fields: Fields, wording: str) -> bool:
        """Whether a problem, in one of the task's wordings, is held out."""
        content = [self.name, sorted(fields.items())]
        return is_kept_out([*content, wording] if self.taught else content, KEPT_OUT)


def filled(wording: str, fields: Fields) -> str:
    """Insert fields into a wording, each once; inserted text is not parsed again."""
    pieces = [wording]
    for name, value in fields.items():
        pieces = [
            part
            for piece in pieces
            for part in (_split(piece, f"{{{name}}}", value) if "{" in piece else [piece])
        ]
    return "".join(pieces)


def _split(piece: str, mark: str, value: str) -> list[str]:
    first, *others = piece.split(mark)
    return [first, *(part for other in others for part in (value, other))]


# --- words and letters -------------------------------------------------------------------


@cache
def _common_words() -> Sequence[str]:
    lists = [words for part in table("topics").values() for words in part.values()]
    return sorted({*own_words(), *" ".join(lists).lower().split()})


def word(draw: random.Random, longest: int = 9, words: Sequence[str] | None = None) -> str:
    """A common English word, or one of `words`."""
    words = _common_words() if words is None else words
    while True:
        drawn = draw.choice(words)
        if len(drawn) <= longest:
            return drawn


def _of_word(
    answer: Callable[[str], str], longest: int = 9, words: Sequence[str] | None = None
) -> Make:
    def make(draw: random.Random) -> tuple[Fields, str]:
        item = word(draw, longest, words)
        return {"x": item}, answer(item)

    return make


def _letter_makers(words: Sequence[str] | None = None) -> dict[str, Make]:
    """The tasks on all letters of a word."""
    return {
        "spell": _of_word("-".join, words=words),
        "reverse": _of_word(lambda text: text[::-1], 7, words),
        "upper": _of_word(str.upper, words=words),
    }


def _unscramble(draw: random.Random) -> tuple[Fields, str]:
    while True:
        whole = word(draw, 7)
        middle = list(whole[1:-1])
        draw.shuffle(middle)
        mixed = whole[0] + "".join(middle) + whole[-1]
        if mixed != whole:
            return {"x": mixed}, whole


def _phrase(draw: random.Random, least: int = 2, most: int = 8) -> list[str]:
    return [word(draw) for _ in range(draw.randint(least, most))]


def _of_phrase(answer: Callable[[list[str]], str]) -> Make:
    def make(draw: random.Random) -> tuple[Fields, str]:
        words = _phrase(draw)
        return {"x": " ".join(words)}, answer(words)

    return make


def _count_things(draw: random.Random) -> tuple[Fields, str]:
    kinds = [word(draw, 6) for _ in range(3)]
    things = [draw.choice(kinds) for _ in range(draw.randint(3, 9))]
    item = draw.choice(things)
    return {"y": item, "x": ", ".join(things)}, str(things.count(item))


def _count_on(draw: random.Random) -> tuple[Fields, str]:
    first = draw.randrange(0, 60)
    last = first + draw.randint(2, 9)
    return {"x": str(first), "y": str(last)}, ", ".join(map(str, range(first, last + 1)))


def _next_number(draw: random.Random) -> tuple[Fields, str]:
    number = draw.randrange(10 ** draw.randint(1, 3))
    return {"x": str(number)}, str(number + 1)


def _larger(draw: random.Random) -> tuple[Fields, str]:
    first, second = draw.sample(range(10 ** draw.randint(1, 3)), 2)
    return {"x": str(first), "y": str(second)}, str(max(first, second))


# --- facts -------------------------------------------------------------------------------


def _fact(pairs: Sequence[tuple[str, str]], reply: str) -> Make:
    def make(draw: random.Random) -> tuple[Fields, str]:
        known, item = draw.choice(pairs)
        answer = filled(reply, {"x": known, "y": item})
        return {"x": known}, answer[0].upper() + answer[1:]

    return make


def _facts() -> Iterator[QuestionTask]:
    for name, relation in table("facts").items():
        pairs = list(relation["pairs"].items())
        make = _fact(pairs, relation["reply"])
        yield QuestionTask(
            name, tuple(relation["ask"]), tuple(relation["unseen"]), make, taught=True
        )


# --- sentences ---------------------------------------------------------------------------


def _sentiment(draw: random.Random) -> tuple[Fields, str]:
    rows = table("language")["sentiment"]
    feeling = draw.choice(("happy", "unhappy"))
    frame = draw.choice(rows["frames"])
    text = filled(frame, {"t": draw.choice(rows["things"]), "a": draw.choice(rows[feeling])})
    return {"x": text + draw.choice(rows[f"{feeling}_tails"])}, feeling.capitalize()


_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


def _persons() -> list[str]:
    stories = table("language")["stories"]
    return [*stories["he"], *stories["she"]]


def _spam(draw: random.Random) -> tuple[Fields, str]:
    rows = table("language")["spam"]
    kind = draw.choice(("spam", "ham"))
    fields = {
        "p": draw.choice(rows["prizes"]),
        "n": str(draw.choice((5, 10, 20, 50, 90, 100, 500, 1000))),
        "m": draw.choice(_persons()),
        "d": draw.choice(_DAYS),
        "h": str(draw.randint(1, 12)),
    }
    return {"x": filled(draw.choice(rows[kind]), fields)}, kind.capitalize()


def _question_kind(draw: random.Random) -> tuple[Fields, str]:
    language = table("language")
    kind = draw.choice(sorted(language["questions"]))
    question = draw.choice(language["questions"][kind])
    place = draw.choice(language["people"]["places"])
    answer = f"It asks for {kind}."
    return {"x": filled(question, {"p": place, "m": draw.choice(_persons())})}, answer


def _made_up(draw: random.Random) -> tuple[Fields, str]:
    language = table("language")
    meaning = draw.choice(sorted(language["made_up"]))
    new = made_up_word(draw, 2)
    # One sentence per meaning, so that there is one correct answer.
    sentence = language["made_up"][meaning][-1]
    return {"x": new, "y": meaning}, filled(sentence, {"w": new})


def _recall(draw: random.Random) -> tuple[Fields, str]:
    meaning = draw.choice(sorted(table("language")["made_up"]))
    new = made_up_word(draw, 2)
    return {"x": new, "y": meaning}, f"A {new} is {meaning}."


def _summary(draw: random.Random) -> tuple[Fields, str]:
    language = table("language")
    stories = language["stories"]
    text, short = draw.choice(stories["items"])
    who = draw.choice(("he", "she"))
    fields = {
        "m": draw.choice(stories[who]),
        "s": who,
        "S": who.capitalize(),
        "p": draw.choice(language["people"]["places"]),
        "t": draw.choice(stories["things"]),
    }
    return {"x": filled(text, fields)}, filled(short, fields)


def _sentence(draw: random.Random) -> str:
    return grammar.sentence(draw).right


def _copy(draw: random.Random) -> tuple[Fields, str]:
    text = _sentence(draw) if draw.random() < 0.5 else " ".join(_phrase(draw))
    return {"x": text}, text


def _quote(draw: random.Random) -> tuple[Fields, str]:
    text = _sentence(draw)
    return {"x": text}, f'"{text}"'


def _grammar(draw: random.Random) -> tuple[Fields, str]:
    pair = grammar.sentence(draw)
    return {"x": pair.wrong}, pair.right


def _unknown(draw: random.Random) -> tuple[Fields, str]:
    rows = table("language")["unknown"]
    item = filled(draw.choice(rows["items"]), {"w": made_up_word(draw, 2).capitalize()})
    return {"x": item}, rows["replies"][0]


_LETTERS = _letter_makers()
_MAKERS: dict[str, Make] = {
    "spell": _LETTERS["spell"],
    "reverse": _LETTERS["reverse"],
    "unscramble": _unscramble,
    "first_letter": _of_word(lambda text: text[0]),
    "last_letter": _of_word(lambda text: text[-1]),
    "upper": _LETTERS["upper"],
    "count_letters": _of_word(lambda text: str(len(text))),
    "count_words": _of_phrase(lambda words: str(len(words))),
    "count_things": _count_things,
    "count_on": _count_on,
    "next_number": _next_number,
    "larger": _larger,
    "copy": _copy,
    "quote": _quote,
    "last_word": _of_phrase(lambda words: words[-1]),
    "first_word": _of_phrase(lambda words: words[0]),
    "grammar": _grammar,
    "summary": _summary,
    "sentiment": _sentiment,
    "spam": _spam,
    "question_kind": _question_kind,
    "made_up": _made_up,
    "recall": _recall,
    "sum": sum_of_two,
    "difference": difference,
    "product": product,
    "calculator": calculator,
    "unknown": _unknown,
}


def all_tasks() -> list[QuestionTask]:
    """Every task, facts first."""
    return [*_facts(), *_tasks(_MAKERS)]


def letter_tasks(words: Sequence[str]) -> list[QuestionTask]:
    """Spelling, reversing and capitals of other words than those of `word`."""
    return _tasks(_letter_makers(words))


def in_more_words(tasks: Sequence[QuestionTask]) -> list[QuestionTask]:
    """The tasks with their further wordings."""
    more = table("wordings")
    return [replace(task, ask=(*task.ask, *more[task.name])) for task in tasks]


def in_most_words(tasks: Sequence[QuestionTask]) -> list[QuestionTask]:
    """The tasks with all their wordings, each of which may stand in a frame."""
    more, frames = table("phrasings")["tasks"], table("phrasings")["frames"]
    return [
        replace(task, ask=_framed((*task.ask, *more[task.name]), frames))
        for task in in_more_words(tasks)
    ]


def _framed(wordings: tuple[str, ...], frames: Sequence[str]) -> tuple[str, ...]:
    """The wordings, each three times alone and once in one of the frames."""
    pairs = zip(wordings, cycle(frames), strict=False)
    return (*(wordings * 3), *(filled(frame, {"q": wording}) for wording, frame in pairs))


def _tasks(makers: Mapping[str, Make]) -> list[QuestionTask]:
    wordings = table("tasks")
    return [
        QuestionTask(name, tuple(wordings[name]["ask"]), tuple(wordings[name]["unseen"]), make)
        for name, make in makers.items()
    ]
