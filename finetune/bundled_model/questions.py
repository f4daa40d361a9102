"""Single questions with one correct answer, by task: facts, spelling, counting, grammar, …

A task draws its problems; tables/tasks.toml and tables/facts.toml contain the wordings for training
and the held-out ones, tables/wordings.toml and tables/phrasings.toml more for training.

Invariant: a problem that is held out, by its content or by its wording, is in no training row.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import cycle

from chatapp.tasks.evaluation.gpt3_tasks import own_words
from finetune.bundled_model.tables import (
    Fields,
    filled,
    is_kept_out,
    made_up_word,
    persons,
    table,
)

Make = Callable[[random.Random], tuple[Fields, str]]
"""Draws a problem: its fields and the answer."""

KEPT_OUT = 0.1  # of the problems
_PATIENCE = 60
"""Draws of a held-out problem after which there are assumed to be no more."""


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
    """The tasks with all their wordings, each three times alone and once in one of the frames."""
    more, frames = table("phrasings")["tasks"], table("phrasings")["frames"]
    made = []
    for task in in_more_words(tasks):
        ask = (*task.ask, *more[task.name])
        pairs = zip(ask, cycle(frames), strict=False)
        framed = (filled(frame, {"q": wording}) for wording, frame in pairs)
        made.append(replace(task, ask=(*(ask * 3), *framed)))
    return made


def _tasks(makers: Mapping[str, Make]) -> list[QuestionTask]:
    wordings = table("tasks")
    return [
        QuestionTask(name, tuple(wordings[name]["ask"]), tuple(wordings[name]["unseen"]), make)
        for name, make in makers.items()
    ]


def _facts() -> list[QuestionTask]:
    return [
        QuestionTask(
            name,
            tuple(relation["ask"]),
            tuple(relation["unseen"]),
            partial(_fact, pairs=list(relation["pairs"].items()), reply=relation["reply"]),
            taught=True,
        )
        for name, relation in table("facts").items()
    ]


def _fact(draw: random.Random, pairs: Sequence[tuple[str, str]], reply: str) -> tuple[Fields, str]:
    known, item = draw.choice(pairs)
    answer = filled(reply, {"x": known, "y": item})
    return {"x": known}, answer[0].upper() + answer[1:]


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


def _of_phrase(answer: Callable[[list[str]], str]) -> Make:
    def make(draw: random.Random) -> tuple[Fields, str]:
        words = [word(draw) for _ in range(draw.randint(2, 8))]
        return {"x": " ".join(words)}, answer(words)

    return make


def _count_things(draw: random.Random) -> tuple[Fields, str]:
    kinds = [word(draw, 6) for _ in range(3)]
    things = [draw.choice(kinds) for _ in range(draw.randint(3, 9))]
    item = draw.choice(things)
    return {"y": item, "x": ", ".join(things)}, str(things.count(item))


# --- numbers -----------------------------------------------------------------------------


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


def _of_two(answer: Callable[[int, int], int]) -> Make:
    def make(draw: random.Random) -> tuple[Fields, str]:
        a, b = (draw.randrange(10 ** draw.randint(1, 3)) for _ in range(2))
        return {"x": str(a), "y": str(b)}, str(answer(a, b))

    return make


def _product(draw: random.Random) -> tuple[Fields, str]:
    a, b = draw.randrange(13), draw.randrange(10 ** draw.randint(1, 2))
    if draw.random() < 0.5:
        a, b = b, a
    return {"x": str(a), "y": str(b)}, str(a * b)


KINDS = ("add", "subtract", "multiply", "divide")


def calculator_call(kind: str, a: int, b: int) -> str:
    """A call of the calculator, as in GSM8K, and its result: <<48+76=124>>124."""
    result = {"add": a + b, "subtract": a - b, "multiply": a * b, "divide": a // b}[kind]
    return f"<<{a}{'+-*/'[KINDS.index(kind)]}{b}={result}>>{result}"


def _calculator(draw: random.Random) -> tuple[Fields, str]:
    """A short story with a sum in it."""
    stories = table("language")["stories"]
    a, b = draw.randrange(2, 100), draw.randrange(2, 100)
    who, what = draw.choice(persons()), draw.choice(stories["things"]) + "s"
    kind = draw.choice(KINDS[:3])
    if kind == "subtract":
        a, b = max(a, b), min(a, b)
    elif kind == "multiply":
        a = a % 9 + 2
    # The first of the wordings with numbers of any size, with the question at its end.
    wording = table("calls")[kind]["story"][0]
    question = filled(wording, {"who": who, "what": what, "a": str(a), "b": str(b)})
    return {"x": question}, f"{who} has {calculator_call(kind, a, b)} {what}."


# --- sentences ---------------------------------------------------------------------------


def wrong_and_right(draw: random.Random) -> tuple[str, str]:
    """A sentence with a mistake of the kind in the GPT-3 paper, occasionally with none, and the
    correct one.
    """
    language = table("language")
    verb = draw.choice(sorted(language["verbs"]))
    past, participle, third, eated = language["verbs"][verb]
    one, many = draw.choice(language["people"]["one"]), draw.choice(language["people"]["many"])
    rest = draw.choice(language["objects"][verb])
    bare = "a " + rest.removeprefix("an ") if rest.startswith("an ") else rest
    fields = {"one": one, "many": many, "rest": rest, "bare": bare, "verb": verb, "past": past}
    fields |= {"participle": participle, "third": third, "eated": eated}
    wrong, right = draw.choice(language["mistakes"]["pairs"])
    return filled(wrong, fields), filled(right, fields)


def _sentiment(draw: random.Random) -> tuple[Fields, str]:
    rows = table("language")["sentiment"]
    feeling = draw.choice(("happy", "unhappy"))
    frame = draw.choice(rows["frames"])
    text = filled(frame, {"t": draw.choice(rows["things"]), "a": draw.choice(rows[feeling])})
    return {"x": text + draw.choice(rows[f"{feeling}_tails"])}, feeling.capitalize()


def _spam(draw: random.Random) -> tuple[Fields, str]:
    rows = table("language")["spam"]
    kind = draw.choice(("spam", "ham"))
    fields = {
        "p": draw.choice(rows["prizes"]),
        "n": draw.choice(rows["numbers"]),
        "m": draw.choice(persons()),
        "d": draw.choice(rows["days"]),
        "h": str(draw.randint(1, 12)),
    }
    return {"x": filled(draw.choice(rows[kind]), fields)}, kind.capitalize()


def _question_kind(draw: random.Random) -> tuple[Fields, str]:
    language = table("language")
    kind = draw.choice(sorted(language["questions"]))
    question = draw.choice(language["questions"][kind])
    fields = {"p": draw.choice(language["people"]["places"]), "m": draw.choice(persons())}
    return {"x": filled(question, fields)}, f"It asks for {kind}."


def _of_made_up_word(draw: random.Random, answer: str = "") -> tuple[Fields, str]:
    """A made-up word with its meaning. answer: "" is the sentence of that meaning in the table."""
    meanings = table("language")["made_up"]
    meaning = draw.choice(sorted(meanings))
    fields = {"x": made_up_word(draw, 2), "y": meaning}
    # One sentence per meaning, so that there is one correct answer.
    return fields, filled(answer or meanings[meaning][-1], {**fields, "w": fields["x"]})


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


def _copy(draw: random.Random) -> tuple[Fields, str]:
    if draw.random() < 0.5:
        text = wrong_and_right(draw)[1]
        return {"x": text}, text
    return _of_phrase(" ".join)(draw)


def _quote(draw: random.Random) -> tuple[Fields, str]:
    text = wrong_and_right(draw)[1]
    return {"x": text}, f'"{text}"'


def _grammar(draw: random.Random) -> tuple[Fields, str]:
    wrong, right = wrong_and_right(draw)
    return {"x": wrong}, right


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
    "made_up": _of_made_up_word,
    "recall": partial(_of_made_up_word, answer="A {x} is {y}."),
    "sum": _of_two(int.__add__),
    "difference": _of_two(int.__sub__),
    "product": _product,
    "calculator": _calculator,
    "unknown": _unknown,
}
