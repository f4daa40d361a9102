"""Single questions with one correct answer, by task: facts, spelling, counting, grammar, …

A task is an entry of tables/tasks.toml or tables/facts.toml: how its fields x and y are drawn, the
reply, its wordings for training and the held-out ones; tables/wordings.toml and
tables/phrasings.toml have more for training. An entry can name the fields of tables/language.toml
and of SOURCES.

Invariant: a problem that is held out, by its content or by its wording, is in no training row.
"""

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle

from chatapp.tasks.evaluation.gpt3_tasks import own_words
from finetune.bundled_model.tables import (
    Fields,
    Lists,
    filled,
    is_kept_out,
    made_up_word,
    table,
)

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
    """A task: its wordings, its reply, and what its fields are drawn from.

    rows: of each list, one is drawn, whose fields belong together. taught: all content is used in
    training, because it cannot be guessed (facts); instead, a wording of each problem is held out.
    """

    name: str
    ask: tuple[str, ...]
    unseen: tuple[str, ...]
    reply: str
    lists: Lists
    rows: Sequence[Sequence[Lists]] = ()
    taught: bool = False

    def problem(self, draw: random.Random, wordings: Sequence[str]) -> tuple[Problem, bool]:
        """A problem in one of the wordings, and whether it is held out."""
        lists = dict(self.lists)
        for rows in self.rows:
            lists |= draw.choice(rows)
        fields = Fields(draw, lists)
        # What the first wording names: of facts only the known side.
        content = {name: fields[name] for name in sorted(re.findall(r"\{(\w+)\}", self.ask[0]))}
        wording = draw.choice(wordings)
        answer = fields.fill(self.reply)
        answer = answer[0].upper() + answer[1:] if self.taught else answer
        given = ", ".join(fields[name] for name in re.findall(r"\{(\w+)\}", self.ask[0]))
        problem = Problem(fields.fill(wording), answer, given)
        return problem, self.keeps_out(content, wording)

    def training(self, draw: random.Random) -> Problem:
        """A training problem."""
        while True:
            problem, is_out = self.problem(draw, self.ask)
            if not is_out:
                return problem

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
            problem, is_out = self.problem(draw, self.unseen if unseen else self.ask)
            if is_out or (unseen and self.taught):
                problems[problem.question] = problem
        return list(problems.values())

    def keeps_out(self, fields: Mapping[str, str], wording: str) -> bool:
        """Whether a problem, in one of the task's wordings, is held out."""
        content = [self.name, sorted(fields.items())]
        return is_kept_out([*content, wording] if self.taught else content, KEPT_OUT)


@cache
def known_fields() -> Lists:
    """The fields that every task and talk can name."""
    return {**table("language")["fields"], **SOURCES}


@cache
def all_tasks() -> Sequence[QuestionTask]:
    """Every task, facts first."""
    tasks = []
    for name, entry in {**table("facts"), **table("tasks")}.items():
        rows = [table("language")[listed] for listed in entry.get("rows", ())]
        if "pairs" in entry:
            rows = [[{"x": x, "y": y} for x, y in entry["pairs"].items()]]
        own = {field: entry[field] for field in ("x", "y") if field in entry}
        wordings = (tuple(entry["ask"]), tuple(entry["unseen"]), entry["reply"])
        lists = {**known_fields(), **own}
        tasks.append(QuestionTask(name, *wordings, lists, rows, taught="pairs" in entry))
    return tasks


def letter_tasks(words: Sequence[str]) -> list[QuestionTask]:
    """Spelling, reversing and capitals of other words."""
    lists: Lists = {
        "word": lambda fields: word(fields.draw, 9, words),
        "short_word": lambda fields: word(fields.draw, 7, words),
    }
    tasks = [task for task in all_tasks() if task.name in ("spell", "reverse", "upper")]
    return [replace(task, lists={**task.lists, **lists}) for task in tasks]


def in_more_words(tasks: Iterable[QuestionTask]) -> list[QuestionTask]:
    """The tasks with their further wordings."""
    more = table("wordings")
    return [replace(task, ask=(*task.ask, *more[task.name])) for task in tasks]


def in_most_words(tasks: Iterable[QuestionTask]) -> list[QuestionTask]:
    """The tasks with all their wordings, each three times alone and once in one of the frames."""
    more, frames = table("phrasings")["tasks"], table("phrasings")["frames"]
    made = []
    for task in in_more_words(tasks):
        ask = (*task.ask, *more[task.name])
        framed = [filled(f, {"q": q}) for q, f in zip(ask, cycle(frames), strict=False)]
        made.append(replace(task, ask=(*(ask * 3), *framed)))
    return made


# --- what fields are drawn from ----------------------------------------------------------


@cache
def _common_words() -> Sequence[str]:
    lists = [words for part in table("topics").values() for words in part.values()]
    return sorted({*own_words(), *" ".join(lists).lower().split()})


def word(draw: random.Random, longest: int = 9, words: Sequence[str] | None = None) -> str:
    """A common English word, or one of `words`."""
    words = _common_words() if words is None else words
    while True:
        one = draw.choice(words)
        if len(one) <= longest:
            return one


def _mixed(fields: Fields) -> str:
    """A word whose inner letters are mixed; sets the whole word."""
    draw = fields.draw
    while True:
        whole = fields["whole"] = word(draw, 7)
        middle = list(whole[1:-1])
        draw.shuffle(middle)
        mixed = whole[0] + "".join(middle) + whole[-1]
        if mixed != whole:
            return mixed


def _things(fields: Fields) -> str:
    """A list of words, some of which recur; sets one of them and how often it is there."""
    draw = fields.draw
    kinds = [word(draw, 6) for _ in range(3)]
    things = [draw.choice(kinds) for _ in range(draw.randint(3, 9))]
    fields["y"] = draw.choice(things)
    fields["count"] = str(things.count(fields["y"]))
    return ", ".join(things)


def _number(draw: random.Random, digits: int = 3) -> str:
    """A number of one to so many digits."""
    return str(draw.randrange(10 ** draw.randint(1, digits)))


def _two_numbers(fields: Fields) -> str:
    """A number; sets another."""
    first, second = fields.draw.sample(range(10 ** fields.draw.randint(1, 3)), 2)
    fields["y"] = str(second)
    return str(first)


def _factors(fields: Fields) -> str:
    """A factor of a product, and sets the other: one of the two is below 13."""
    draw = fields.draw
    first, fields["y"] = draw.sample([str(draw.randrange(13)), _number(draw, 2)], 2)
    return first


def _count_on(fields: Fields) -> str:
    """A number a little larger than x; sets all from x to it."""
    numbers = range(int(fields["x"]), int(fields["x"]) + fields.draw.randint(3, 10))
    fields["range"] = ", ".join(map(str, numbers))
    return str(numbers[-1])


CALLS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
"""What the calculator can do, and the sign of it."""


def calculator_call(kind: str, a: int, b: int) -> str:
    """A call of the calculator, as in GSM8K, and its result: <<48+76=124>>124."""
    result = {"add": a + b, "subtract": a - b, "multiply": a * b, "divide": a // b}[kind]
    return f"<<{a}{CALLS[kind]}{b}={result}>>{result}"


def _sum_in_words(fields: Fields) -> str:
    """A short story with a sum in it; sets who has how many of what."""
    draw = fields.draw
    kind, a, b = draw.choice(list(CALLS)[:3]), draw.randrange(2, 100), draw.randrange(2, 100)
    if kind == "subtract":
        a, b = max(a, b), min(a, b)
    elif kind == "multiply":
        a = a % 9 + 2
    fields |= {"a": str(a), "b": str(b), "call": calculator_call(kind, a, b)}
    # The first of the wordings with numbers of any size, with the question at its end.
    return fields.fill(table("calls")[kind]["story"][0])


def _capitals() -> Mapping[str, str]:
    return table("facts")["capital"]["pairs"]  # type: ignore[no-any-return]


def _country(fields: Fields) -> str:
    """A country that has not been drawn yet."""
    return fields.draw.choice([one for one in _capitals() if one not in fields.values()])


SOURCES: Mapping[str, Callable[[Fields], str]] = {
    "word": lambda fields: word(fields.draw),
    "short_word": lambda fields: word(fields.draw, 7),
    "made_up_word": lambda fields: made_up_word(fields.draw, 2),
    "mixed": _mixed,
    "phrase": lambda fields: " ".join(word(fields.draw) for _ in range(fields.draw.randint(2, 8))),
    "things": _things,
    "number": lambda fields: _number(fields.draw),
    "other": lambda fields: _number(fields.draw),
    "start": lambda fields: str(fields.draw.randrange(60)),
    "end": _count_on,
    "two_numbers": _two_numbers,
    "factors": _factors,
    "sum_in_words": _sum_in_words,
    "kept": lambda fields: fields.draw.choice(
        (str(fields.draw.randrange(10, 1000)), word(fields.draw))
    ),
    "country": _country,
    "second_country": _country,
    "third_country": _country,
    # Of what has been drawn.
    "spelt": lambda fields: "-".join(fields["x"]),
    "reversed": lambda fields: fields["x"][::-1],
    "capitals": lambda fields: fields["x"].upper(),
    "first": lambda fields: fields["x"][0],
    "last": lambda fields: fields["x"][-1],
    "length": lambda fields: str(len(fields["x"])),
    "words": lambda fields: str(len(fields["x"].split())),
    "first_word": lambda fields: fields["x"].split()[0],
    "last_word": lambda fields: fields["x"].split()[-1],
    "bare": lambda fields: re.sub("^an ", "a ", fields["rest"]),
    "next": lambda fields: str(int(fields["x"]) + 1),
    "larger": lambda fields: str(max(int(fields["x"]), int(fields["y"]))),
    "sum": lambda fields: str(int(fields["x"]) + int(fields["y"])),
    "difference": lambda fields: str(int(fields["x"]) - int(fields["y"])),
    "product": lambda fields: str(int(fields["x"]) * int(fields["y"])),
    "total": lambda fields: str(int(fields["sum"]) + int(fields["z"])),
    "less": lambda fields: str(int(fields["total"]) - 1),
    "kept_kind": lambda fields: "number" if fields["kept"].isdigit() else "word",
    "city": lambda fields: _capitals()[fields["country"]],
    "second_city": lambda fields: _capitals()[fields["second_country"]],
    "third_city": lambda fields: _capitals()[fields["third_country"]],
}
"""The fields that tables can name: drawn, some with others that they set, or computed."""
