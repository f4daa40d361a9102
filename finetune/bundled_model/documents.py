"""Build the documents the bundled model is trained on.

    python -m finetune.bundled_model.documents DATA OUT [--seed N] [--scale S]

DATA is a folder that holds the sources named in chatapp/bundled/README.md: books/*.txt,
dialogue/sgd_train.jsonl.gz, dialogue/personality_chat, dialogue/chatterbot_corpus, instruct/*
and gsm8k/train.jsonl. OUT receives one JSONL file a source or generator, `text`, `messages` or
`parts` a line. The same data, seed and scale give the same files.
"""

import csv
import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from chatapp.evaluation.words import own_words
from finetune.bundled_model.generators import (
    arithmetic,
    dialogues,
    incontext,
    people,
    repetition,
    sentences,
)
from finetune.bundled_model.generators.tasks import all_tasks, in_more_words, letter_tasks
from finetune.recipes import run

Pair = tuple[str, str]
"""A user's message and its reply."""

# The bot is plain about what it is. Several ways to ask share an answer, so that the
# answer belongs to the meaning and not to one wording.
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
            "I can chat, answer simple questions, add numbers, and follow examples in a prompt.",
            "We can chat a little, and you can show me examples to follow. "
            "I often get things wrong.",
        ),
    ),
    (
        ("How big are you?", "How many parameters do you have?", "Are you a big model?"),
        ("I have about four million parameters. That is very small for a language model.",),
    ),
    (
        ("How do you work?", "How do you make your answers?", "What do you do all day?"),
        ("I read the text so far and guess the next piece of a word, again and again.",),
    ),
    (
        ("Are you ChatGPT?", "Are you GPT-4?", "Are you a GPT?", "Are you GPT-2?"),
        ("I am a GPT-2, but a tiny one, trained from scratch on a laptop's processor.",),
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

# What a word is made of, which tokens hide, takes more rows to learn than other tasks.
LETTERS = {
    "spell",
    "reverse",
    "unscramble",
    "first_letter",
    "last_letter",
    "upper",
    "count_letters",
}

NAMES = (
    "Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Mary Noah Olga Paul Rosa Sam "
    "Tina Viktor Wendy Yusuf Zoe Maria Peter Lucy Omar Nina Tom Sara"
).split()
THINGS = (
    "tea coffee bread apples cheese soup rice music chess football books films trains cats dogs "
    "horses flowers rain snow summer winter swimming dancing cooking painting"
).split()

ARTICLES = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "—": "-", "…": "...", "–": "-"})


def clean(text: str) -> str:
    """Typewriter quotes and single spaces: a small model has no entries to spare."""
    return re.sub(r"[ \t]+", " ", text.translate(ARTICLES)).strip()


def books(folder: Path) -> Iterator[dict[str, Any]]:
    """Passages of about 3,000 characters, lines unwrapped, cut at paragraphs."""
    for path in sorted(folder.glob("*.txt")):
        passage: list[str] = []
        for paragraph in re.split(r"\n\s*\n", path.read_text(encoding="utf-8-sig")):
            text = clean(paragraph.replace("\n", " ").replace("_", ""))
            if not text:
                continue
            passage.append(text)
            if sum(map(len, passage)) > 3000:
                yield {"text": "\n".join(passage)}
                passage = []
        if passage:
            yield {"text": "\n".join(passage)}


def schema_guided(path: Path) -> Iterator[dict[str, Any]]:
    """The two-speaker task dialogues of SGD; "S" is the assistant."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            turns = [(speaker, clean(text)) for speaker, text in json.loads(line)["turns"]]
            if turns and turns[0][0] == "U":
                yield chat(text for _, text in turns)


def instructions(folder: Path) -> Iterator[dict[str, Any]]:
    """Short instructions with short answers from three sets."""
    rows: list[tuple[str, str, str]] = []
    for row in json.loads((folder / "raschka_1100.json").read_text(encoding="utf-8")):
        rows.append((row["instruction"], row["input"], row["output"]))
    for line in (folder / "self_instruct_seed_175.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows += [(row["instruction"], i["input"], i["output"]) for i in row["instances"]]
    for line in (folder / "dolly_3k.jsonl").read_text(encoding="utf-8").splitlines():
        user, assistant = json.loads(line)["messages"][:2]
        rows.append((user["content"], "", assistant["content"]))
    for instruction, given, output in rows:
        question = clean(f"{instruction}\n{given}" if given else instruction)
        answer = clean(output)
        if answer and len(question) <= 400 and len(answer) <= 400:
            yield chat([question, answer])


def personality(folder: Path) -> list[Pair]:
    """The friendly tone: one person should answer in one voice."""
    path = folder / "Queries_Responses_Friendly_QnAMaker.tsv"
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [(clean(row["Question"]), clean(row["Answer"])) for row in rows]


def chatterbot(folder: Path) -> list[Pair]:
    """First question and answer of each short conversation of the general topics."""
    pairs = []
    left_out = {"coding", "tech_support", "politics", "psychology", "gossip", "botprofile"}
    for path in sorted(folder.glob("*.yml")):
        if path.stem in left_out:
            continue
        for conversation in yaml.safe_load(path.read_text(encoding="utf-8"))["conversations"]:
            question, answer, *_ = (clean(str(turn)) for turn in conversation)
            if question and answer and len(answer) <= 160:
                pairs.append((question, answer))
    return pairs


def small_talk(folder: Path, chats: int, seed: int) -> Iterator[dict[str, Any]]:
    """Chats chained from question and answer pairs, some with a name to remember."""
    draw = random.Random(seed)
    friendly = personality(folder / "personality_chat")
    general = chatterbot(folder / "chatterbot_corpus")
    own = {variant.lower() for asked, _ in ABOUT_ITSELF for variant in asked}
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
            kind = draw.random()
            if kind < 0.35:
                asked, answers = draw.choice(ABOUT_ITSELF)
                question, answer = draw.choice(asked), draw.choice(answers)
            elif kind < 0.75:
                question, answer = draw.choice(friendly)
            else:
                question, answer = draw.choice(general)
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
        system = ""
        if draw.random() < 0.15:
            system = draw.choice(
                (
                    "You are a friendly assistant.",
                    "A chat between a user and a helpful assistant.",
                    "You are a helpful assistant. Answer briefly.",
                )
            )
        yield chat(turns, system)


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


def chat(turns: Iterable[str], system: str = "") -> dict[str, Any]:
    """Texts in turn, user first, as one row of `messages`; a last word of the user is cut."""
    texts = list(turns)
    texts = texts[: len(texts) // 2 * 2]
    messages = [{"role": "system", "content": system}] if system else []
    for index, text in enumerate(texts):
        messages.append({"role": "assistant" if index % 2 else "user", "content": text})
    return {"messages": messages}


def grade_school(path: Path) -> Iterator[dict[str, Any]]:
    """The word problems of GSM8K, with their calculator calls and the result at the end."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        answer = clean(row["answer"]).replace("\n#### ", "\nThe answer is ")
        if len(answer) <= 400:
            yield chat([clean(row["question"]), answer])


def groupings(data: Path) -> dict[str, sentences.Groups]:
    """Ways to group the sentences of the allowed texts."""
    stories = [row["text"] for row in books(data / "books")]
    services = sentences.by_service(data / "dialogue" / "sgd_train.jsonl.gz")
    asked = [row["messages"][0]["content"] for row in instructions(data / "instruct")]
    problems = [row["messages"][0]["content"] for row in grade_school(data / "gsm8k/train.jsonl")]
    source = {
        "books": _sentences(stories),
        "services": [each for group in services.values() for each in group],
        "instructions": _sentences(asked),
        "problems": _sentences(problems),
    }
    everything = (each for group in source.values() for each in group)
    return {
        "service": services,
        "source": source,
        "opening": sentences.by_opening(everything),
    }


def common_words(texts: Iterable[str], count: int) -> list[str]:
    """The most frequent words of three to nine small letters, the most frequent first."""
    found = Counter(word for text in texts for word in re.findall(r"\b[a-z]{3,9}\b", text))
    return [word for word, _ in sorted(found.items(), key=lambda each: (-each[1], each[0]))[:count]]


def _sentences(texts: Iterable[str]) -> list[str]:
    """The sentences of texts, each once."""
    lines = (line for text in texts for line in text.split("\n"))
    return list(dict.fromkeys(each for line in lines for each in sentences.split(line)))


def build(
    data: Annotated[Path, typer.Argument(help="folder of the source data", exists=True)],
    out: Annotated[Path, typer.Argument(help="folder to write to")],
    seed: int = 0,
    scale: Annotated[float, typer.Option(min=0.001, help="how much of each generator")] = 1.0,
) -> None:
    """Write the training documents of the bundled model."""
    out.mkdir(parents=True, exist_ok=True)

    def count(rows: int) -> int:
        return max(1, round(rows * scale))

    words, tasks = own_words(), all_tasks()
    groups = groupings(data)
    some = [each for group in groups["source"].values() for each in group]
    spelt = in_more_words(letter_tasks(sorted({*words, *common_words(some, 4000)})))
    asked = in_more_words(tasks)
    for name, rows in (
        ("books", books(data / "books")),
        ("sgd", schema_guided(data / "dialogue" / "sgd_train.jsonl.gz")),
        ("instructions", instructions(data / "instruct")),
        ("grade_school", grade_school(data / "gsm8k" / "train.jsonl")),
        ("smalltalk", small_talk(data / "dialogue", count(16000), seed)),
        ("questions", dialogues.question_rows(tasks, count(40000), seed)),
        (
            "letters",
            dialogues.question_rows(
                [task for task in tasks if task.name in LETTERS], count(30000), seed + 1
            ),
        ),
        ("spelling", dialogues.question_rows(spelt, count(50000), seed + 2, loosely=True)),
        ("more_questions", dialogues.question_rows(asked, count(40000), seed + 4, loosely=True)),
        ("close", dialogues.close_rows(count(20000), seed + 3)),
        ("people", people.rows(ABOUT_ITSELF, tasks, count(20000), seed + 5)),
        ("follow_ups", dialogues.rows(ABOUT_ITSELF, tasks, count(12000), seed)),
        ("repetition", repetition.rows(words, some, count(16000), seed)),
        ("arithmetic", arithmetic.rows(count(40000), seed, arithmetic.SHARES)),
        ("more_arithmetic", arithmetic.rows(count(40000), seed + 1, arithmetic.SHORT)),
        ("few_shot_tasks", incontext.task_rows(tasks, count(12000), seed)),
        ("recall", incontext.recall_rows(some, words, count(20000), seed)),
        ("majority", incontext.majority_rows(some, count(6000), seed)),
        ("in_context_short", incontext.training_rows(groups, words, count(20000), seed, 6)),
        ("in_context", incontext.training_rows(groups, words, count(40000), seed + 1, 16)),
        (
            "more_in_context",
            incontext.training_rows(groups, words, count(8000), seed + 2, 12, (0.1, 0.3, 0.45)),
        ),
    ):
        path = out / f"{name}.jsonl"
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        path.write_text("".join(lines), encoding="utf-8")
        print(f"{path}: {len(lines):,} documents")


if __name__ == "__main__":
    run(build)
