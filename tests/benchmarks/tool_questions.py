"""Questions that one of five tools answers, and questions that none does.

Their sentences and words are other ones than those of `chatapp/dialogue/tools/examples.toml`.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TOOLS = ("calculator", "clock", "manual")


@dataclass(frozen=True)
class ToolQuestion:
    """tool: the right one; "none" for none. arguments: the right ones; None for any. answer: what
    the right reply contains; "" for the result of the tool itself.
    """

    text: str
    tool: str
    arguments: Mapping[str, Any] | None = None
    answer: str = ""
    more: tuple[str, ...] = field(default=(), kw_only=True)


_NAMES = ("Hugo", "Nora", "Emil", "Greta", "Otto", "Lucy", "Max", "Ella")
_THINGS = ("bricks", "candles", "lemons", "tickets", "pencils", "rings", "plates", "photos")


def sum_question(draw: random.Random, number: int, a: int, b: int) -> tuple[str, int]:
    """A question on two numbers, the first not smaller, and its answer. number: of the wording."""
    who, what = draw.choice(_NAMES), draw.choice(_THINGS)
    return (
        (f"{who} owns {a} {what} and buys another {b}. How many {what} is that together?", a + b),
        (f"Could you multiply {a} by {b} for me?", a * b),
        (f"{who} baked {a} {what}; {b} were eaten. How many remain?", a - b),
        (f"Every box holds {b} {what}. How many {what} are there in {a} boxes?", a * b),
        (f"I need {a} plus {b}.", a + b),
        (f"How much do I get when I take {b} away from {a}?", a - b),
        (f"One of the {what} costs {b} euros. What do {a} of them cost?", a * b),
    )[number % 7]


def _sums(draw: random.Random) -> list[ToolQuestion]:
    questions = []
    for number in range(20):
        a, b = draw.randrange(20, 2000), draw.randrange(3, 20)
        text, value = sum_question(draw, number, a, b)
        questions.append(ToolQuestion(text, "calculator", None, str(value)))
    return questions


def _clock() -> list[ToolQuestion]:
    here = (
        "Can you look up the time?",
        "Tell me today's date, please.",
        "Is it Monday or Tuesday?",
        "I have no watch here. How late is it?",
        "What hour is it at the moment?",
        "Which date is written on today's newspaper?",
        "Is it past noon already?",
        "What is the day today?",
        "Do we have the weekend yet?",
        "Time, please!",
    )
    cities = (
        "Paris",
        "Berlin",
        "Cairo",
        "Madrid",
        "Lima",
        "Oslo",
        "Vienna",
        "Dublin",
        "Athens",
        "Seoul",
    )
    away = (
        "My aunt lives in {}. What does her clock show?",
        "If I call {} now, what time is it there?",
        "Current local time for {}",
        "Are people in {} still asleep at this hour?",
    )
    return [
        *(ToolQuestion(text, "clock", {}) for text in here),
        *(
            ToolQuestion(away[place % len(away)].format(city), "clock", {"zone": city})
            for place, city in enumerate(cities)
        ),
    ]


_MANUAL = (
    "How can I search my old conversations in chatapp?",
    "Which slash command of this program clears the screen?",
    "How do I install another model for chatapp?",
    "Does this program have a dark theme?",
    "What does F3 do in chatapp?",
    "How do I fine-tune a model with this program?",
    "Where are my chats kept by this app?",
    "How can I delete a chat in chatapp?",
    "How do I attach a document to a chat in this program?",
    "Is there a way to undo in chatapp?",
    "How do I write a tool of my own for this program?",
    "What is the flag of chatapp for the temperature?",
    "Explain the evaluation command of this program.",
    "How do I start the server of chatapp?",
    "How do I connect chatapp to a server?",
    "Can I see attention weights in this program?",
    "How do I stop a running reply in chatapp?",
    "How do I rename a conversation in this app?",
    "Which file formats does this program read?",
    "How can I copy a reply in chatapp?",
)

_NONE = (
    "Good morning!",
    "What is your name?",
    "Can you sing?",
    "I feel lonely.",
    "Write two lines about the autumn.",
    "Who painted the Mona Lisa?",
    "What do cows eat?",
    "Name a big city in Italy.",
    "Is ice cold?",
    "Why do leaves fall?",
    "What makes a good friend?",
    "Give me a name for my new cat.",
    "Tell me a joke about a dog.",
    "How do airplanes stay up?",
    "Do you like winter?",
    "What is a volcano?",
    "Translate water into German.",
    "My sister is 9 and loves horses.",
    "We had 30 guests at our wedding.",
    "I was born in 1985.",
    "Our house has number 14.",
    "I ate 2 apples and now I am full.",
    "She won the race in 2012.",
    "What is the plural of mouse?",
    "Spell elephant.",
    "Can you keep a secret?",
    "I am bored, any ideas?",
    "What would you cook for guests?",
    "Describe the smell of rain.",
    "Who was Cleopatra?",
    "Which planet has rings?",
    "Tell me about whales.",
    "How can I fall asleep faster?",
    "What is bread made of?",
    "Say something nice to me.",
    "I lost my keys again.",
    "That is not what I meant.",
    "Thanks a lot!",
    "Bye!",
    "What do you think about robots?",
    "Is the sun a star?",
    "Why is the sky blue?",
    "What language do people speak in Brazil?",
    "Make up a riddle.",
    "Finish my sentence: the old man went",
    "My favorite season is spring.",
    "Are spiders insects?",
    "How does a bicycle work?",
    "Who wrote Romeo and Juliet?",
    "I would like to learn the piano.",
)


def questions() -> list[ToolQuestion]:
    """Sixty that need a tool, twenty each, and fifty that need none, shuffled."""
    draw = random.Random(7)
    drawn = [
        *_sums(draw),
        *_clock(),
        *(ToolQuestion(text, "manual") for text in _MANUAL),
        *(ToolQuestion(text, "none") for text in _NONE),
    ]
    draw.shuffle(drawn)
    return drawn
