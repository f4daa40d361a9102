"""The cleaned texts of others for the bundled model, as rows, and their sentences in groups.

Invariant: a source gives the same rows in the same order every time; nothing here draws. Groups can
be recognized from the sentences alone, which are short enough for several of them to fit in one
prompt.
"""

import csv
import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

Groups = dict[str, list[str]]

_SHORTEST, _LONGEST = 4, 26  # words

OPENINGS = (
    "how many",
    "how much",
    "how long",
    "how far",
    "how old",
    *"how what who whose where when why which is are was do does did can could would will".split(),
    *"tell give write name describe explain find list make i please".split(),
)


def split(text: str) -> Iterator[str]:
    """The sentences of a text which are neither long nor short."""
    for sentence in re.split(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]*[A-Z])", text):
        sentence = sentence.strip(" \"'\n")
        if "\n" not in sentence and _SHORTEST <= len(sentence.split()) <= _LONGEST:
            yield sentence


def by_service(path: Path) -> Groups:
    """The users' messages in the task dialogues of SGD, by the only service of a dialogue."""
    groups: defaultdict[str, dict[str, None]] = defaultdict(dict)
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            services = {service.partition("_")[0] for service in row["services"]}
            if len(services) != 1:
                continue
            (service,) = services
            for speaker, text in row["turns"]:
                if speaker == "U" and 5 <= len(text.split()) <= _LONGEST:
                    groups[service][text] = None
    return {name: list(texts) for name, texts in groups.items()}


def by_opening(sentences: Iterable[str]) -> Groups:
    """Questions and requests by their first words."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for sentence in dict.fromkeys(sentences):
        words = sentence.lower()
        opening = next((start for start in OPENINGS if words.startswith(start + " ")), None)
        if opening:
            groups[opening].append(sentence)
    return dict(groups)


Pair = tuple[str, str]
"""A user's message and its reply."""

_PASSAGE = 3000
TYPEWRITER = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "—": "-", "…": "...", "–": "-"})


def clean(text: str) -> str:
    """Normalize to typewriter quotes and single spaces: a small model has no spare vocabulary
    entries.
    """
    return re.sub(r"[ \t]+", " ", text.translate(TYPEWRITER)).strip()


def chat(turns: Iterable[str], system: str = "") -> dict[str, Any]:
    """Alternating texts, user first, as one row of `messages`; a final message of the
    user is cut."""
    texts = list(turns)
    texts = texts[: len(texts) // 2 * 2]
    messages = [{"role": "system", "content": system}] if system else []
    for index, text in enumerate(texts):
        messages.append({"role": "assistant" if index % 2 else "user", "content": text})
    return {"messages": messages}


def books(folder: Path) -> Iterator[dict[str, Any]]:
    """Passages of about 3,000 characters, lines unwrapped, cut at paragraphs."""
    for path in sorted(folder.glob("*.txt")):
        paragraphs = re.split(r"\n\s*\n", path.read_text(encoding="utf-8-sig"))
        lines = (clean(paragraph.replace("\n", " ").replace("_", "")) for paragraph in paragraphs)
        yield from passages(lines, "\n")


def passages(parts: Iterable[str], joint: str) -> Iterator[dict[str, Any]]:
    """Parts joined to texts of a little over 3,000 characters; the last may be shorter."""
    passage: list[str] = []
    for part in parts:
        if not part:
            continue
        passage.append(part)
        if sum(map(len, passage)) > _PASSAGE:
            yield {"text": joint.join(passage)}
            passage = []
    if passage:
        yield {"text": joint.join(passage)}


def packed_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a packed JSONL file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def schema_guided(path: Path) -> Iterator[dict[str, Any]]:
    """The two-speaker task dialogues of SGD; "S" is the assistant."""
    for row in packed_rows(path):
        turns = [(speaker, clean(text)) for speaker, text in row["turns"]]
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
    for instruction, context, output in rows:
        question = clean(f"{instruction}\n{context}" if context else instruction)
        answer = clean(output)
        if answer and len(question) <= 400 and len(answer) <= 400:
            yield chat([question, answer])


def personality(folder: Path) -> list[Pair]:
    """The friendly tone: one person should answer in one voice."""
    path = folder / "Queries_Responses_Friendly_QnAMaker.tsv"
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [(clean(row["Question"]), clean(row["Answer"])) for row in rows]


# Facts that cannot be learned in talking, which this model should admit not to know, are left out.
_LEFT_OUT = set(
    "botprofile coding gossip history literature money movies politics psychology sports "
    "tech_support trivia".split()
)


def chatterbot(folder: Path) -> list[Pair]:
    """First question and answer of each short conversation of the general topics."""
    pairs = []
    for path in sorted(folder.glob("*.yml")):
        if path.stem in _LEFT_OUT:
            continue
        for conversation in yaml.safe_load(path.read_text(encoding="utf-8"))["conversations"]:
            question, answer, *_ = (clean(str(turn)) for turn in conversation)
            if question and answer and len(answer) <= 160:
                pairs.append((question, answer))
    return pairs


def grade_school(path: Path) -> Iterator[dict[str, Any]]:
    """The word problems of GSM8K, with their calculator calls and the result at the end."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        answer = clean(row["answer"]).replace("\n#### ", "\nThe answer is ")
        if len(answer) <= 400:
            yield chat([clean(row["question"]), answer])


def groupings(data: Path) -> dict[str, Groups]:
    """Ways to group the sentences of the allowed texts."""
    stories = [row["text"] for row in books(data / "books")]
    services = by_service(data / "dialogue" / "sgd_train.jsonl.gz")
    first_messages = [row["messages"][0]["content"] for row in instructions(data / "instruct")]
    problems = [row["messages"][0]["content"] for row in grade_school(data / "gsm8k/train.jsonl")]
    source = {
        "books": _sentences(stories),
        "services": [sentence for group in services.values() for sentence in group],
        "instructions": _sentences(first_messages),
        "problems": _sentences(problems),
    }
    everything = (sentence for group in source.values() for sentence in group)
    return {
        "service": services,
        "source": source,
        "opening": by_opening(everything),
    }


def common_words(texts: Iterable[str], count: int) -> list[str]:
    """The most frequent words of three to nine lower-case letters, the most frequent first."""
    counts = Counter(word for text in texts for word in re.findall(r"\b[a-z]{3,9}\b", text))
    return [
        word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:count]
    ]


def _sentences(texts: Iterable[str]) -> list[str]:
    """The sentences of texts, without repetitions."""
    lines = (line for text in texts for line in text.split("\n"))
    return list(dict.fromkeys(part for line in lines for part in split(line)))
