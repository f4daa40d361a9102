"""Chats whose turns refer to earlier ones, and chats of questions from the tasks.

Invariant: a follow-up cannot be answered without an earlier turn, and held-out problems do not
occur.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from finetune.bundled_model.generators.tasks import QuestionTask, all_tasks, filled, word
from finetune.bundled_model.generators.words import table

Turns = list[str]
"""Alternating texts, the user's first."""

Asides = Sequence[tuple[Sequence[str], Sequence[str]]]
"""Questions, and the replies to any of them."""


@cache
def _tasks() -> dict[str, QuestionTask]:
    return {task.name: task for task in all_tasks()}


def chat_row(turns: Sequence[str]) -> dict[str, Any]:
    """Turns as a row of `messages`."""
    roles = ("user", "assistant")
    return {
        "messages": [
            {"role": roles[number % 2], "content": text} for number, text in enumerate(turns)
        ]
    }


def _name(draw: random.Random) -> str:
    stories = table("language")["stories"]
    names: list[str] = [*stories["he"], *stories["she"]]
    return draw.choice(names)


def _pick(draw: random.Random, *texts: str) -> str:
    return draw.choice(texts)


def name(draw: random.Random) -> list[Turns]:
    """A name given and asked for later."""
    who = _name(draw)
    statement = _pick(
        draw, f"My name is {who}.", f"I am {who}.", f"Hi, I'm {who}.", f"Call me {who}."
    )
    question = _pick(
        draw, "What is my name?", "What's my name?", "Do you know my name?", "Who am I?"
    )
    return [[statement, f"Hello {who}! Nice to meet you."], [question, f"Your name is {who}."]]


def liking(draw: random.Random) -> list[Turns]:
    """Something liked, and asked for later."""
    thing = draw.choice(_THINGS)
    statement = _pick(
        draw, f"I like {thing}.", f"I love {thing}.", f"My favourite thing is {thing}."
    )
    question = _pick(
        draw, "What do I like?", "Do you remember what I like?", "What did I say I like?"
    )
    return [
        [statement, f"{thing.capitalize()}? That is nice."],
        [question, f"You like {thing}."],
    ]


def owning(draw: random.Random) -> list[Turns]:
    """An animal, its name and its colour, asked for later."""
    animal = _pick(draw, "dog", "cat", "horse", "rabbit", "bird")
    called = _name(draw)
    colour = _pick(draw, "black", "white", "brown", "grey", "red")
    statement = _pick(
        draw,
        f"I have a {colour} {animal} called {called}.",
        f"My {animal} is {colour} and its name is {called}.",
    )
    return [
        [statement, f"{called} is a lovely name for a {animal}."],
        [
            _pick(draw, f"What is my {animal} called?", f"What is the name of my {animal}?"),
            f"Your {animal} is called {called}.",
        ],
        [
            _pick(draw, f"What colour is my {animal}?", f"Which colour is {called}?"),
            f"Your {animal} is {colour}.",
        ],
    ]


def place(draw: random.Random) -> list[Turns]:
    """Where somebody lives, and its capital, without naming the country again."""
    facts = table("facts")["capital"]["pairs"]
    country = draw.choice(sorted(facts))
    statement = _pick(
        draw, f"I live in {country}.", f"I am from {country}.", f"I come from {country}."
    )
    return [
        [statement, f"{country} is a beautiful country."],
        [_pick(draw, "Where do I live?", "Where am I from?"), f"You are from {country}."],
        [
            _pick(draw, "What is the capital there?", "And what is its capital?"),
            f"The capital of {country} is {facts[country]}.",
        ],
    ]


def capitals(draw: random.Random) -> list[Turns]:
    """A question, then the same with only another country; a correction."""
    facts = table("facts")["capital"]["pairs"]
    question = "What is the capital of {x}?"
    while True:
        first, *others = draw.sample(sorted(facts), 3)
        if not _tasks()["capital"].keeps_out({"x": first}, question):
            break
    turns = [[filled(question, {"x": first}), f"The capital of {first} is {facts[first]}."]]
    for other in others[: draw.randint(1, 2)]:
        question = _pick(
            draw,
            f"And of {other}?",
            f"And {other}?",
            f"What about {other}?",
            f"No, I meant {other}.",
        )
        turns.append([question, f"The capital of {other} is {facts[other]}."])
    return turns


def sums(draw: random.Random, below: int = 50) -> list[Turns]:
    """A sum of numbers below a bound, and others that continue from its result."""
    while True:
        a, b, c = (draw.randrange(1, below) for _ in range(3))
        if not _tasks()["sum"].keeps_out({"x": str(a), "y": str(b)}, ""):
            break
    turns = [[_pick(draw, f"What is {a} plus {b}?", f"Add {a} and {b}."), str(a + b)]]
    turns.append(
        [_pick(draw, f"And plus {c}?", f"Now add {c}.", f"Add {c} to that."), str(a + b + c)]
    )
    if draw.random() < 0.5:
        turns.append([_pick(draw, "Now subtract 1.", "And minus 1?"), str(a + b + c - 1)])
    return turns


# The questions of `letters` on a word.
_OF_LETTERS = ("spell", "reverse", "count_letters", "upper", "first_letter")


def letters(draw: random.Random) -> list[Turns]:
    """A word, then questions about it that do not name it."""
    while True:
        spelt = word(draw, 7)
        if not any(_tasks()[name].keeps_out({"x": spelt}, "") for name in _OF_LETTERS):
            break
    turns = [[_pick(draw, f"Spell {spelt}.", f"How do you spell {spelt}?"), "-".join(spelt)]]
    others = [
        [_pick(draw, "And backwards?", "Now backwards."), spelt[::-1]],
        [
            _pick(draw, "How many letters is that?", "How many letters does it have?"),
            str(len(spelt)),
        ],
        [_pick(draw, "And in capitals?", "Write it in capitals."), spelt.upper()],
        [_pick(draw, "What is its first letter?", "And the first letter?"), spelt[0]],
    ]
    return [*turns, *draw.sample(others, 2)]


def repetition(draw: random.Random) -> list[Turns]:
    """A request to repeat an earlier message."""
    statement = word(draw)
    turns = [[_pick(draw, f"Say {statement}.", f"Please say {statement}."), statement]]
    return [*turns, [_pick(draw, "Again, please.", "Say it again.", "Once more."), statement]]


def remembering(draw: random.Random) -> list[Turns]:
    """A number or a word to keep in mind."""
    kept = str(draw.randrange(10, 1000)) if draw.random() < 0.5 else word(draw)
    kind = "number" if kept.isdigit() else "word"
    statement = _pick(draw, f"Remember the {kind} {kept}.", f"Keep the {kind} {kept} in mind.")
    question = _pick(
        draw, f"What was the {kind}?", f"Which {kind} did I tell you?", f"Tell me the {kind}."
    )
    return [
        [statement, f"I will remember the {kind} {kept}."],
        [question, f"The {kind} was {kept}."],
    ]


_THINGS = (
    "tea coffee bread apples cheese soup rice music chess football books films trains cats dogs "
    "horses flowers rain snow summer winter swimming dancing cooking painting"
).split()

_TALKS: tuple[Callable[[random.Random], list[Turns]], ...] = (
    name,
    liking,
    owning,
    place,
    capitals,
    sums,
    letters,
    repetition,
    remembering,
)

# Talks whose turns make no sense with others between them.
_CLOSE = (capitals, sums, letters, repetition)


def follow_ups(asides: Asides, tasks: Sequence[QuestionTask], draw: random.Random) -> Turns:
    """One talk or two, with small talk and single questions between their turns.

    asides: questions and the replies to any of them.
    """
    turns: Turns = []
    for talk in draw.sample(_TALKS, draw.choice((1, 1, 2))):
        for number, pair in enumerate(talk(draw)):
            if not (number and talk in _CLOSE):
                for _ in range(draw.choice((0, 0, 1, 2))):
                    turns += aside(draw, asides, tasks)
            turns += pair
    return turns


def aside(draw: random.Random, asides: Asides, tasks: Sequence[QuestionTask]) -> Turns:
    """One turn of small talk, or a question from a task, with its reply."""
    if draw.random() < 0.5:
        question, replies = draw.choice(asides)
        return [draw.choice(question), draw.choice(replies)]
    problem = draw.choice(tasks).training(draw)
    return [problem.question, problem.answer]


def rows(
    asides: Asides, tasks: Sequence[QuestionTask], count: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield `count` chats with follow-ups on earlier turns."""
    draw = random.Random(seed)
    for _ in range(count):
        yield chat_row(follow_ups(asides, tasks, draw))


def close_rows(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield `count` chats of one talk that continues from a result: sums below 100, or letters."""
    draw = random.Random(seed)
    for _ in range(count):
        turns = sums(draw, 100) if draw.random() < 0.5 else letters(draw)
        yield chat_row([text for pair in turns for text in pair])


# Tasks that return their input.
_TO_THE_LETTER = {"copy", "quote", "first_word", "last_word", "grammar", "summary", "made_up"}


def question_rows(tasks: Sequence[QuestionTask], count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield `count` chats of one to six questions of the tasks, facts half as often as others.

    Except of tasks that return their input, some are in lower case or without a mark at the end, as
    people type them.
    """
    draw, weights = random.Random(seed), [1 if task.taught else 2 for task in tasks]
    for _ in range(count):
        turns: Turns = []
        for task in draw.choices(tasks, weights, k=draw.choice((1, 1, 2, 3, 6))):
            problem = task.training(draw)
            exact = task.name in _TO_THE_LETTER
            turns += [problem.question if exact else typed(draw, problem.question), problem.answer]
        yield chat_row(turns)


def typed(draw: random.Random, question: str) -> str:
    """A question as people type it: in lower case, or without a mark at the end."""
    if draw.random() < 0.3:
        question = question.lower()
    return question.rstrip("?.") if draw.random() < 0.3 else question
