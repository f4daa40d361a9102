"""Chats from tables: talks that refer to earlier turns, openers, not knowing, stories, small talk.

A maker draws the turns of one chat.

Invariant: a reply fits every wording of its message, a follow-up cannot be answered without an
earlier turn, and held-out problems, wordings and names do not occur.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle
from typing import Any

from finetune.bundled_model.questions import (
    CALLS,
    QuestionTask,
    all_tasks,
    calculator_call,
    known_fields,
    word,
)
from finetune.bundled_model.sources import Pair, Row, chat
from finetune.bundled_model.tables import (
    Fields,
    Lists,
    entries,
    filled,
    is_kept_out,
    made_up_word,
    table,
    typed,
    with_article,
)

Turns = list[str]
"""Alternating texts, the user's first."""

Talks = Sequence[tuple[Sequence[str], Sequence[str]]]
"""Messages, each in several wordings, and the replies to any of them."""


def several(
    draw: random.Random, counts: Sequence[int], turn: Callable[[random.Random], Turns]
) -> Turns:
    """As many turns as one of `counts`, each drawn, and its message as people type it."""
    turns: Turns = []
    for _ in range(draw.choice(counts)):
        message, *rest = turn(draw)
        turns += [typed(draw, message), *rest]
    return turns


@cache
def talks(name: str) -> Talks:
    """The talks of a table: "itself" or "everyday"."""
    return [(talk["said"], talk["replies"]) for talk in table(name)["talk"]]


def one_of(draw: random.Random, known: Talks) -> Turns:
    """A message of one of the talks, and a reply."""
    messages, replies = draw.choice(known)
    return [draw.choice(messages), draw.choice(replies)]


@dataclass(frozen=True, slots=True)
class Asides:
    """What stands between the turns of a talk: small talk, and questions from the tasks."""

    talks: Talks
    tasks: Sequence[QuestionTask]

    def turn(self, draw: random.Random) -> Turns:
        """One turn with its reply."""
        if draw.random() < 0.5:
            return one_of(draw, self.talks)
        problem = draw.choice(self.tasks).training(draw)
        return [problem.question, problem.answer]

    def turns(self, draw: random.Random, counts: Sequence[int]) -> Turns:
        """As many turns as one of `counts`."""
        return [text for _ in range(draw.choice(counts)) for text in self.turn(draw)]


# --- talks that refer to earlier turns ---------------------------------------------------


@cache
def _task(name: str) -> QuestionTask:
    return next(task for task in all_tasks() if task.name == name)


def _talk(draw: random.Random, name: str, below: int = 50) -> list[Turns]:
    """The turns of a talk of tables/talks.toml, which asks for no held-out problem.

    below: a bound of the numbers of a sum.
    """
    talk = table("talks")[name]
    terms = [str(number) for number in range(1, below)]
    numbers = {"term": terms, "other_term": terms, "third_term": terms}
    lists = {**known_fields(), **numbers, **talk.get("fields", {})}
    while True:
        fields = Fields(draw, lists)
        more = draw.sample(talk.get("more", []), draw.choice(talk.get("some", [0])))
        turns = [[fields.fill(side) for side in pair] for pair in [*talk["turns"], *more]]
        content = {name: text for name, text in fields.items() if name in ("x", "y")}
        tasks = map(_task, talk.get("tasks", ()))
        if not any(task.keeps_out(content, turns[0][0]) for task in tasks):
            return turns


def follow_ups(draw: random.Random, asides: Asides) -> Turns:
    """One talk or two, with asides between their turns."""
    turns: Turns = []
    all_talks = table("talks")
    for name in draw.sample(list(all_talks), draw.choice((1, 1, 2))):
        for number, pair in enumerate(_talk(draw, name)):
            if not (number and all_talks[name].get("close")):
                turns += asides.turns(draw, (0, 0, 1, 2))
            turns += pair
    return turns


def close_talk(draw: random.Random) -> Turns:
    """One talk that continues from a result: sums below 100, or letters."""
    pairs = _talk(draw, draw.choice(("sums", "letters")), below=100)
    return [text for pair in pairs for text in pair]


# --- people ------------------------------------------------------------------------------

KEPT_OUT_NAMES = 0.1


@cache
def names(*, kept_out: bool = False) -> list[str]:
    """First names: those for training, or the held-out ones."""
    all_names: list[str] = table("people")["names"].split()
    return [name for name in all_names if is_kept_out(["name", name], KEPT_OUT_NAMES) == kept_out]


def _name(draw: random.Random) -> str:
    """A first name; half of them are made up, so that a name must be copied from the chat."""
    if draw.random() < 0.5:
        return draw.choice(names())
    while True:
        made_up = made_up_word(draw, draw.choice((1, 1, 2))).capitalize()
        if made_up not in names(kept_out=True):
            return made_up


def people(draw: random.Random, asides: Asides) -> Turns:
    """A chat in which somebody says who they are or what they like, and asks for it later."""
    likes = entries(table("people")["likes"])
    values = {
        "name": lambda: _name(draw),
        "liking": lambda: word(draw) if draw.random() < 0.3 else draw.choice(likes),
    }
    statements: list[Turns] = []
    questions: list[Turns] = []
    for kind in draw.choice((["name"], ["name"], ["liking"], ["name", "liking"])):
        wordings, fields = table("people")[kind], Fields(draw, {}, {"x": values[kind]()})
        for turns, keys in ((statements, ("said", "replies")), (questions, ("ask", "answers"))):
            message, reply = (fields.fill(wordings[key]) for key in keys)
            turns.append([typed(draw, message), reply])
    draw.shuffle(questions)
    chat = ([*asides.turns(draw, (0, 0, 0, 1, 2, 4)), *pair] for pair in (*statements, *questions))
    return [text for pair in chat for text in pair]


# --- small talk and single questions -----------------------------------------------------


def everyday(draw: random.Random) -> Turns:
    """One to five turns of everyday small talk, some of them about the model itself."""

    def turn(draw: random.Random) -> Turns:
        return one_of(draw, talks("itself" if draw.random() < 0.2 else "everyday"))

    return several(draw, (1, 1, 2, 3, 5), turn)


def not_about_itself(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs without questions that the model answers about itself: two answers would be two
    voices.
    """
    own = {wording.lower() for wordings, _ in talks("itself") for wording in wordings}
    return [pair for pair in pairs if pair[0].lower() not in own]


def small_talk(draw: random.Random, friendly: Sequence[Pair], general: Sequence[Pair]) -> Row:
    """A chat chained from question and answer pairs, some with a name to remember."""
    parts = table("smalltalk")
    known = [
        (parts[kind], Fields(draw, {}, {"x": draw.choice(parts[values])}))
        for kind, values, share in (("name", "names", 0.45), ("liking", "things", 0.4))
        if draw.random() < share
    ]
    turns = [x.fill(text) for wordings, x in known for text in wordings["said"]]
    for _ in range(1 + int(draw.expovariate(1 / 5))):
        kind = draw.random()
        if kind < 0.35:
            question, answer = one_of(draw, talks("itself"))
        else:
            question, answer = draw.choice(friendly if kind < 0.75 else general)
        turns += [_greeting(draw, question), answer]
    turns += [x.fill(text) for wordings, x in known for text in wordings["asked"]]
    return chat(turns, draw.choice(parts["systems"]) if draw.random() < 0.15 else "")


def _greeting(draw: random.Random, question: str) -> str:
    """People greet before they ask, and drop capitals and marks."""
    if draw.random() < 0.12 and len(question) > 8:
        if not question.startswith(("I ", "I'")):
            question = question[0].lower() + question[1:]
        question = draw.choice(table("smalltalk")["greetings"]) + question
    if draw.random() < 0.2:
        question = question.lower()
    if draw.random() < 0.15:
        question = question.rstrip("?.!")
    return question


# Tasks that return their input.
_TO_THE_LETTER = {"copy", "quote", "first_word", "last_word", "grammar", "summary", "made_up"}


def questions(draw: random.Random, tasks: Sequence[QuestionTask]) -> Turns:
    """One to six questions of the tasks, facts half as often as others.

    Except of tasks that return their input, some are in lower case or without a mark at the end.
    """
    weights = [1 if task.taught else 2 for task in tasks]
    turns: Turns = []
    for task in draw.choices(tasks, weights, k=draw.choice((1, 1, 2, 3, 6))):
        problem = task.training(draw)
        exact = task.name in _TO_THE_LETTER
        turns += [problem.question if exact else typed(draw, problem.question), problem.answer]
    return turns


# --- replies by rules to what people open a talk with -------------------------------------

_SENTENCE = re.compile(r"[^.?!]+[.?!]*")
_LONGEST_NAME = 6  # words; more would be half of a sentence
_TURNED = {"your": "my", "my": "your", "you": "me", "me": "you", "i": "you", "our": "your"}


def replies_to(opener: str) -> list[str]:
    """The replies that fit an opener: to its last question, or without one to its last sentence.
    Empty if other generators reply to it.
    """
    sentences = [sentence.strip() for sentence in _SENTENCE.findall(opener) if sentence.strip()]
    if not sentences:
        return []
    sentence = ([text for text in sentences if text.endswith("?")] or sentences)[-1]
    for kind in table("openers")["kind"]:
        match = re.search(kind["pattern"], sentence, re.IGNORECASE)
        if match is None:
            continue
        name, replies = _named(match.groupdict().get("x") or ""), kind["replies"]
        fitting = [filled(reply, {"x": name}) for reply in replies if name or "{x}" not in reply]
        if fitting or not replies:
            return fitting
    return []


def _named(text: str) -> str:
    """The name in a text, from the other speaker's perspective; empty if there is none."""
    rules = table("openers")
    text = re.sub(r"\B'|'\B|\"", "", text).strip()
    cut = None
    while cut != text:
        cut = text
        text = re.sub(rf"^{rules['before']}", "", text, flags=re.IGNORECASE)
        text = re.sub(rf"{rules['after']}$", "", text, flags=re.IGNORECASE)
    if len(text.split()) > _LONGEST_NAME or re.fullmatch(rules["vague"], text, re.IGNORECASE):
        return ""
    return re.sub(r"[A-Za-z']+", lambda match: _TURNED.get(match[0].lower(), match[0]), text)


def openers(draw: random.Random, answered: Talks, asides: Talks) -> Turns:
    """An opener and one of its replies, sometimes two, and sometimes one more turn."""
    turns = [text for _ in range(draw.choice((1, 1, 1, 2))) for text in one_of(draw, answered)]
    return turns + several(draw, (0,) * 7 + (1,) * 3, lambda draw: one_of(draw, asides))


# --- not knowing -------------------------------------------------------------------------

_MADE_UP = 0.25  # of the names, so that the question decides, not the name


def abstention(draw: random.Random, asides: Asides) -> Turns:
    """One to three questions that cannot be answered, with asides before them."""
    turns: Turns = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        turns += [*asides.turns(draw, (0, 0, 0, 1, 2)), *declined(draw)]
    return turns


def declined(draw: random.Random) -> Turns:
    """A question in a training wording, and a reply that does not answer it."""
    kind = draw.choice(list(table("abstention")["kinds"].values()))
    fields = Fields(draw, _unknown_things())
    question = fields.fill(kind["ask"])
    return [typed(draw, question), fields.fill(table("abstention")["replies"][kind["reply"]])]


def held_out_questions(count: int, seed: int) -> list[str]:
    """`count` different questions in held-out wordings, of the kinds in turn."""
    draw = random.Random(seed)
    different: dict[str, None] = {}
    for kind in cycle(table("abstention")["kinds"].values()):
        if len(different) == count:
            break
        different[Fields(draw, _unknown_things()).fill(kind["unseen"])] = None
    return list(different)


@cache
def _unknown_things() -> Lists:
    rows = table("abstention")
    lists: dict[str, Any] = {name: entries(rows[part]) for name, part in rows["fields"].items()}
    for name in rows["names"]:
        lists[name] = partial(_known_or_made_up, known=lists[name])
    return lists | {
        "n": lambda fields: str(fields.draw.randint(2, 999)),
        "d": lambda fields: str(fields.draw.randint(1200, 2025)),
    }


def _known_or_made_up(fields: Fields, known: Sequence[str]) -> str:
    draw = fields.draw
    return made_up_word(draw, 2).capitalize() if draw.random() < _MADE_UP else draw.choice(known)


# --- calls of the calculator -------------------------------------------------------------

_MOST_DIGITS = 6


def calls(draw: random.Random) -> Turns:
    """One to three questions whose numbers are too large to compute, answered by a call.

    What small numbers alone do not teach is to copy the numbers, digit by digit, into the call and
    its result into the answer.
    """
    return several(draw, (1, 1, 2, 3), call_question)


def call_question(draw: random.Random) -> Turns:
    """A question, and the answer with its call and its result."""
    kind, form = draw.choice(list(CALLS)), draw.choice(("story", "bare"))
    a, b = _numbers(draw, kind, bare=form == "bare")
    numbers = {"a": str(a), "b": str(b), "call": calculator_call(kind, a, b)}
    fields = Fields(draw, known_fields(), numbers)
    question = fields.fill(table("calls")[kind][form])
    answer = "{call}" if form == "bare" else "{call} {what}."
    return [question, fields.fill(answer)]


def _numbers(draw: random.Random, kind: str, *, bare: bool) -> tuple[int, int]:
    """Two numbers of up to six digits, for a bare question too large to be computed without."""
    while True:
        a, b = (draw.randrange(2, 10 ** draw.randint(1, _MOST_DIGITS)) for _ in range(2))
        if kind == "divide":
            a, b = max(a, b) // min(a, b) * min(a, b), min(a, b)
        elif kind == "subtract":
            a, b = max(a, b), min(a, b)
        limit = 99 if kind in ("multiply", "divide") else 999
        if not bare or max(a, b) > limit:
            return a, b


# --- short stories that stay with their subject ------------------------------------------

_NAMED = 3  # times at least
_PRONOUNS = {"it": ("it", "its"), "he": ("him", "his"), "she": ("her", "her")}


@cache
def subjects() -> dict[str, list[str]]:
    """The subjects by kind."""
    return {kind: entries(listed) for kind, listed in table("subjects")["kinds"].items()}


def story(draw: random.Random, kind: str, subject: str) -> str:
    """A plot of tables/plots.toml on a subject of a kind, a version of each sentence drawn."""
    plots = table("plots")
    lines = draw.choice(plots["thing" if kind == "thing" else "living"])["lines"]
    pronouns = [word for word in ("he", "she") if subject in table("subjects")[word]]
    pronoun = "it" if kind == "animal" else draw.choice(pronouns or ["he", "she"])
    known = dict(zip("xsoh", (subject, pronoun, *_PRONOUNS[pronoun]), strict=True))
    lists = {name: plots[part] for name, part in plots["fields"].items()}
    lists["f"] = [friend for friend in plots["friends"] if friend != subject]
    text = ""
    while text.count("{x}") < _NAMED:
        text = " ".join(draw.choice(versions) for versions in lines)
    text = Fields(draw, lists, known).fill(draw.choice(plots["title"]) + text)
    # The articles of the table stand before consonants.
    return re.sub(r"\b([Aa]) (?=[aeiou])(?!uni)", r"\1n ", text)


def stories(draw: random.Random, asides: Asides) -> Turns:
    """One story or two that are asked for, some after a turn on something else."""
    turns = asides.turn(draw) if draw.random() < 0.15 else []
    for number in range(draw.choice((1, 1, 1, 2))):
        kind = draw.choice(sorted(subjects()))
        subject = draw.choice(subjects()[kind])
        ask = draw.choice(table("subjects")["again" if number else "ask"])
        question = filled(ask, {"x": with_article(subject)})
        turns += [typed(draw, question), story(draw, kind, subject)]
    return turns
