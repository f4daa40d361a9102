"""Chats from tables: talks that refer to earlier turns, openers, not knowing, stories, small talk.

A maker draws the turns of one chat; `chat_rows` makes rows of them.

Invariant: a reply fits every wording of its message, a follow-up cannot be answered without an
earlier turn, and held-out problems, wordings and names do not occur.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any

from finetune.bundled_model.questions import KINDS, QuestionTask, all_tasks, calculator_call, word
from finetune.bundled_model.sources import Pair, chat
from finetune.bundled_model.tables import (
    Fields,
    entries,
    filled,
    is_kept_out,
    made_up_word,
    persons,
    table,
    with_article,
)

Turns = list[str]
"""Alternating texts, the user's first."""

Talks = Sequence[tuple[Sequence[str], Sequence[str]]]
"""Messages, each in several wordings, and the replies to any of them."""


@cache
def talks(name: str) -> Talks:
    """The talks of a table: "itself" or "everyday"."""
    return [(talk["said"], talk["replies"]) for talk in table(name)["talk"]]


@dataclass(frozen=True, slots=True)
class Asides:
    """What stands between the turns of a talk: small talk, and questions from the tasks."""

    talks: Talks
    tasks: Sequence[QuestionTask]

    def turn(self, draw: random.Random) -> Turns:
        """One turn with its reply."""
        if draw.random() < 0.5:
            question, replies = draw.choice(self.talks)
            return [draw.choice(question), draw.choice(replies)]
        problem = draw.choice(self.tasks).training(draw)
        return [problem.question, problem.answer]

    def turns(self, draw: random.Random, counts: Sequence[int]) -> Turns:
        """As many turns as one of `counts`."""
        return [text for _ in range(draw.choice(counts)) for text in self.turn(draw)]


def chat_rows(
    make: Callable[[random.Random], Turns], count: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield `count` chats as rows of `messages`."""
    draw = random.Random(seed)
    for _ in range(count):
        yield chat(make(draw))


def typed(draw: random.Random, question: str) -> str:
    """A question as people type it: in lower case, or without a mark at the end."""
    if draw.random() < 0.3:
        question = question.lower()
    return question.rstrip("?.") if draw.random() < 0.3 else question


def _turn(draw: random.Random, pair: Sequence[str | list[str]], fields: Fields) -> Turns:
    """A message and its reply, of which each is a text or a list to draw it from.

    {X} is the field x with a capital at its beginning.
    """
    capitals = {name.capitalize(): text[0].upper() + text[1:] for name, text in fields.items()}
    texts = [text if isinstance(text, str) else draw.choice(text) for text in pair]
    return [filled(text, capitals | fields) for text in texts]


# --- talks that refer to earlier turns ---------------------------------------------------


@cache
def _task(name: str) -> QuestionTask:
    return next(task for task in all_tasks() if task.name == name)


_SOURCES: dict[str, Callable[[random.Random], str]] = {
    "name": lambda draw: draw.choice(persons()),
    "word": word,
    "mind": lambda draw: str(draw.randrange(10, 1000)) if draw.random() < 0.5 else word(draw),
    "country": lambda draw: draw.choice(sorted(table("facts")["capital"]["pairs"])),
}


def _talk(draw: random.Random, name: str) -> list[Turns]:
    """The turns of a talk of tables/talks.toml."""
    if name in _WORKED_OUT:
        return _WORKED_OUT[name](draw)
    talk = table("talks")[name]
    fields = {
        field: _SOURCES[source](draw) if isinstance(source, str) else draw.choice(source)
        for field, source in talk["fields"].items()
    }
    if "country" in fields:
        fields["city"] = table("facts")["capital"]["pairs"][fields["country"]]
    if "kept" in fields:
        fields["kind"] = "number" if fields["kept"].isdigit() else "word"
    return [_turn(draw, pair, fields) for pair in talk["turns"]]


def _capitals(draw: random.Random) -> list[Turns]:
    """A question, then the same with only another country."""
    capital, question = table("facts")["capital"], "What is the capital of {x}?"
    pairs = capital["pairs"]
    while True:
        first, *others = draw.sample(sorted(pairs), 3)
        if not _task("capital").keeps_out({"x": first}, question):
            break
    turns = [_turn(draw, (question, capital["reply"]), {"x": first, "y": pairs[first]})]
    for other in others[: draw.randint(1, 2)]:
        pair = (table("talks")["capitals"]["others"], capital["reply"])
        turns.append(_turn(draw, pair, {"x": other, "y": pairs[other]}))
    return turns


def _sums(draw: random.Random, below: int = 50) -> list[Turns]:
    """A sum of numbers below a bound, and others that continue from its result."""
    while True:
        a, b, c = (draw.randrange(1, below) for _ in range(3))
        if not _task("sum").keeps_out({"x": str(a), "y": str(b)}, ""):
            break
    results = {"sum": a + b, "total": a + b + c, "less": a + b + c - 1}
    fields = {name: str(value) for name, value in ({"a": a, "b": b, "c": c} | results).items()}
    talk = table("talks")["sums"]
    turns = [_turn(draw, pair, fields) for pair in talk["turns"]]
    return [*turns, _turn(draw, talk["less"], fields)] if draw.random() < 0.5 else turns


# The questions of `_letters` on a word.
_OF_LETTERS = ("spell", "reverse", "count_letters", "upper", "first_letter")


def _letters(draw: random.Random) -> list[Turns]:
    """A word, then questions about it that do not name it."""
    while True:
        x = word(draw, 7)
        if not any(_task(name).keeps_out({"x": x}, "") for name in _OF_LETTERS):
            break
    answers = {"upper": x.upper(), "count": str(len(x)), "first": x[0], "reversed": x[::-1]}
    fields = {"x": x, "spelt": "-".join(x)} | answers
    talk = table("talks")["letters"]
    turns = [_turn(draw, pair, fields) for pair in talk["turns"]]
    return [*turns, *draw.sample([_turn(draw, pair, fields) for pair in talk["others"]], 2)]


_WORKED_OUT = {"capitals": _capitals, "sums": _sums, "letters": _letters}


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
    turns = _sums(draw, 100) if draw.random() < 0.5 else _letters(draw)
    return [text for pair in turns for text in pair]


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
    statements: list[Turns] = []
    questions: list[Turns] = []

    def both(kind: str, what: str) -> None:
        wordings = table("people")[kind]
        for turns, keys in ((statements, ("said", "replies")), (questions, ("ask", "answers"))):
            message, reply = _turn(draw, [wordings[key] for key in keys], {"x": what})
            turns.append([typed(draw, message), reply])

    kinds = draw.choice(("name", "name", "liking", "both"))
    if kinds != "liking":
        both("name", _name(draw))
    if kinds != "name":
        likes = entries(table("people")["likes"])
        both("liking", word(draw) if draw.random() < 0.3 else draw.choice(likes))
    draw.shuffle(questions)
    turns: Turns = []
    for pair in (*statements, *questions):
        turns += [*asides.turns(draw, (0, 0, 0, 1, 2, 4)), *pair]
    return turns


# --- small talk and single questions -----------------------------------------------------


def everyday(draw: random.Random, about_itself: Talks) -> Turns:
    """One to five turns of everyday small talk, some of them `about_itself`."""
    turns: Turns = []
    for _ in range(draw.choice((1, 1, 2, 3, 5))):
        openings, replies = draw.choice(about_itself if draw.random() < 0.2 else talks("everyday"))
        turns += [typed(draw, draw.choice(openings)), draw.choice(replies)]
    return turns


def small_talk(
    friendly: Sequence[Pair], general: Sequence[Pair], count: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Chats chained from question and answer pairs, some with a name to remember.

    Questions that the model answers about itself are left out: two answers would be two voices.
    """
    draw, parts, itself = random.Random(seed), table("smalltalk"), talks("itself")
    own = {wording.lower() for wordings, _ in itself for wording in wordings}
    friendly, general = (
        [pair for pair in pairs if pair[0].lower() not in own] for pairs in (friendly, general)
    )
    for _ in range(count):
        known = [
            (parts[kind], {"x": draw.choice(parts[values])})
            for kind, values, share in (("name", "names", 0.45), ("liking", "things", 0.4))
            if draw.random() < share
        ]
        turns = [text for wordings, x in known for text in _turn(draw, wordings["said"], x)]
        for _ in range(1 + int(draw.expovariate(1 / 5))):
            kind = draw.random()
            if kind < 0.35:
                asked, replies = draw.choice(itself)
                question, answer = draw.choice(asked), draw.choice(replies)
            else:
                question, answer = draw.choice(friendly if kind < 0.75 else general)
            turns += [_greeting(draw, question), answer]
        turns += [text for wordings, x in known for text in _turn(draw, wordings["asked"], x)]
        yield chat(turns, draw.choice(parts["systems"]) if draw.random() < 0.15 else "")


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
    turns: Turns = []
    for _ in range(draw.choice((1, 1, 1, 2))):
        (opener,), replies = draw.choice(answered)
        turns += [opener, draw.choice(replies)]
    if draw.random() < 0.3:
        openings, others = draw.choice(asides)
        turns += [typed(draw, draw.choice(openings)), draw.choice(others)]
    return turns


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
    fields = _unknown_fields(draw)
    reply = draw.choice(table("abstention")["replies"][kind["reply"]])
    return [typed(draw, filled(draw.choice(kind["ask"]), fields)), filled(reply, fields)]


def held_out_questions(count: int, seed: int) -> list[str]:
    """`count` different questions in held-out wordings, of the kinds in turn."""
    draw = random.Random(seed)
    different: dict[str, None] = {}
    for kind in cycle(table("abstention")["kinds"].values()):
        if len(different) == count:
            break
        different[filled(draw.choice(kind["unseen"]), _unknown_fields(draw))] = None
    return list(different)


def _unknown_fields(draw: random.Random) -> Fields:
    rows = table("abstention")
    fields = {name: draw.choice(entries(rows[part])) for name, part in rows["fields"].items()}
    for name in rows["names"]:
        if draw.random() < _MADE_UP:
            fields[name] = made_up_word(draw, 2).capitalize()
    return fields | {"n": str(draw.randint(2, 999)), "d": str(draw.randint(1200, 2025))}


# --- calls of the calculator -------------------------------------------------------------

_MOST_DIGITS = 6


def calls(draw: random.Random) -> Turns:
    """One to three questions whose numbers are too large to compute, answered by a call.

    What small numbers alone do not teach is to copy the numbers, digit by digit, into the call and
    its result into the answer.
    """
    turns: Turns = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        question, answer = call_question(draw)
        turns += [typed(draw, question), answer]
    return turns


def call_question(draw: random.Random) -> tuple[str, str]:
    """A question, and the answer with its call and its result."""
    kind = draw.choice(KINDS)
    in_words = draw.random() < 0.5
    a, b = _numbers(draw, kind, bare=not in_words)
    call = calculator_call(kind, a, b)
    who, what = draw.choice(persons()), draw.choice(table("language")["stories"]["things"]) + "s"
    wording = draw.choice(table("calls")[kind]["story" if in_words else "bare"])
    question = filled(wording, {"a": str(a), "b": str(b), "who": who, "what": what})
    return question, f"{call} {what}." if in_words else call


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
    fields = _story_fields(draw, kind, subject)
    while True:
        text = " ".join(draw.choice(versions) for versions in lines)
        if text.count("{x}") < _NAMED:
            continue
        opening: str = draw.choice(plots["title"])
        for name in "xfq":  # each after its right article
            article = with_article(fields[name]).split()[0]
            text = text.replace(f"a {{{name}}}", f"{article} {{{name}}}")
            text = text.replace(f"A {{{name}}}", f"{article.capitalize()} {{{name}}}")
        return opening + filled(text, fields)


def _story_fields(draw: random.Random, kind: str, subject: str) -> Fields:
    plots = table("plots")
    time = draw.choice(plots["times"])
    s = draw.choice(_pronouns(kind, subject))
    return {
        "x": subject,
        "s": s,
        "S": s.capitalize(),
        "o": _PRONOUNS[s][0],
        "h": _PRONOUNS[s][1],
        "n": draw.choice(plots["names"]),
        "f": draw.choice([friend for friend in plots["friends"] if friend != subject]),
        "p": draw.choice(plots["places"]),
        "t": draw.choice(plots["things"]),
        "w": time,
        "W": time.capitalize(),
        "q": draw.choice(plots["qualities"]),
    }


def _pronouns(kind: str, subject: str) -> list[str]:
    if kind == "animal":
        return ["it"]
    known = [pronoun for pronoun in ("he", "she") if subject in table("subjects")[pronoun]]
    return known or ["he", "she"]


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
