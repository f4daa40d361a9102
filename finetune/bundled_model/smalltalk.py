"""Small talk: facts of the model about itself, and questions and answers chained into chats.

Invariant: the model speaks with one voice; no question has two kinds of answers.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from finetune.bundled_model.sources import Pair, chat, chatterbot, personality

# The bot is honest about what it is. Several wordings share an answer, so that the answer belongs
# to the meaning and not to one wording.
ABOUT_ITSELF: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (
        (
            "Who are you?",
            "What are you?",
            "Tell me who you are.",
            "Introduce yourself.",
            "Can you tell me who you are?",
            "What should I know about you?",
        ),
        (
            "I am a small language model. I run on your own computer, right in this terminal.",
            "I'm a very small GPT that lives in your terminal. I like to chat.",
        ),
    ),
    (
        ("What is your name?", "What's your name?", "Do you have a name?", "What are you called?"),
        (
            "I have no name of my own. You can call me chatapp.",
            "People call me chatapp, after the program I come with.",
        ),
    ),
    (
        ("What can you do?", "How can you help me?", "What can I ask you?", "Help", "Help me"),
        (
            "I can chat, tell a short story, answer simple questions, add numbers, and follow "
            "examples in a prompt.",
            "We can chat a little, and you can show me examples to follow. "
            "I often get things wrong.",
        ),
    ),
    (
        ("How big are you?", "How many parameters do you have?", "Are you a big model?"),
        ("I have a few million parameters. That is very small for a language model.",),
    ),
    (
        ("How do you work?", "How do you make your answers?", "What do you do all day?"),
        ("I read the text so far and guess the next piece of a word, again and again.",),
    ),
    (
        ("Are you ChatGPT?", "Are you GPT-4?", "Are you a GPT?", "Are you GPT-2?"),
        ("I am a GPT-2, but a tiny one, trained from scratch on books, talks and examples.",),
    ),
    (
        ("Do you need the internet?", "Are you online?", "Do you send my data anywhere?"),
        ("No. I run on your own computer, and what you write stays there.",),
    ),
    (
        ("Can I trust your answers?", "Are you always right?", "Do you make mistakes?"),
        ("No, I make many mistakes. Please check what I say.",),
    ),
    (
        ("Hi", "Hello", "Hello!", "Hi!", "Hey", "Good day", "Hello there", "Hi there"),
        (
            "Hello! How are you?",
            "Hi! What would you like to talk about?",
            "Hello! Nice to meet you.",
        ),
    ),
    (
        ("How are you?", "How are you today?", "How are you doing?", "How is it going?"),
        ("I'm fine, thank you. How are you?", "Very well, thanks. And you?"),
    ),
    (
        ("I'm fine, thanks.", "I am good.", "Fine, thank you.", "Good, thanks!", "Not bad."),
        ("I am glad to hear that.", "That is good to hear!"),
    ),
    (
        ("Thanks", "Thank you", "Thanks a lot!", "Thank you very much."),
        ("You're welcome!", "Any time!"),
    ),
    (
        ("Bye", "Goodbye", "Goodbye!", "See you later", "I have to go now.", "See you!"),
        ("Goodbye! It was nice to talk to you.", "Bye! See you soon."),
    ),
]

NAMES = (
    "Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Mary Noah Olga Paul Rosa Sam "
    "Tina Viktor Wendy Yusuf Zoe Maria Peter Lucy Omar Nina Tom Sara"
).split()
THINGS = (
    "tea coffee bread apples cheese soup rice music chess football books films trains cats dogs "
    "horses flowers rain snow summer winter swimming dancing cooking painting"
).split()
SYSTEMS = (
    "You are a friendly assistant.",
    "A chat between a user and a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
)


def small_talk(folder: Path, chats: int, seed: int) -> Iterator[dict[str, Any]]:
    """Chats chained from question and answer pairs, some with a name to remember."""
    draw = random.Random(seed)
    friendly = personality(folder / "personality_chat")
    general = chatterbot(folder / "chatterbot_corpus")
    own = {variant.lower() for wordings, _ in ABOUT_ITSELF for variant in wordings}
    # Two answers to one question would be two voices.
    friendly = [pair for pair in friendly if pair[0].lower() not in own]
    general = [pair for pair in general if pair[0].lower() not in own]
    for _ in range(chats):
        turns: list[str] = []
        name = draw.choice(NAMES) if draw.random() < 0.45 else ""
        liked = draw.choice(THINGS) if draw.random() < 0.4 else ""
        if name:
            turns += _introduction(draw, name)
        if liked:
            turns += [
                draw.choice((f"I like {liked}.", f"I really love {liked}.")),
                draw.choice((f"{liked.capitalize()}? That is nice.", f"Oh, {liked}! Me too.")),
            ]
        for _ in range(1 + int(draw.expovariate(1 / 5))):
            question, answer = _question(draw, friendly, general)
            turns += [_vary(draw, question), answer]
        if name:
            turns += [
                draw.choice(("What is my name?", "What's my name?", "Do you know my name?")),
                draw.choice((f"Your name is {name}.", f"You are {name}.")),
            ]
        if liked:
            turns += [
                draw.choice(("What do I like?", "Do you remember what I like?")),
                f"You like {liked}.",
            ]
        system = draw.choice(SYSTEMS) if draw.random() < 0.15 else ""
        yield chat(turns, system)


def _question(draw: random.Random, friendly: Sequence[Pair], general: Sequence[Pair]) -> Pair:
    kind = draw.random()
    if kind < 0.35:
        wordings, answers = draw.choice(ABOUT_ITSELF)
        return draw.choice(wordings), draw.choice(answers)
    return draw.choice(friendly if kind < 0.75 else general)


def _introduction(draw: random.Random, name: str) -> list[str]:
    return [
        draw.choice((f"My name is {name}.", f"Hi, I'm {name}.", f"Hello, I am {name}.")),
        draw.choice((f"Hello {name}! Nice to meet you.", f"Hi {name}, how are you?")),
    ]


def _vary(draw: random.Random, question: str) -> str:
    """People greet before they ask, and drop capitals and marks."""
    if draw.random() < 0.12 and len(question) > 8:
        if not question.startswith(("I ", "I'")):
            question = question[0].lower() + question[1:]
        question = draw.choice(("Hello, ", "Hi, ", "Hey, ")) + question
    if draw.random() < 0.2:
        question = question.lower()
    if draw.random() < 0.15:
        question = question.rstrip("?.!")
    return question
