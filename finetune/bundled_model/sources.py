"""The texts of others for the bundled model, cleaned, as rows, and their sentences in groups.

A folder holds the sources that chatapp/bundled/README.md names: books/*.txt, books/{fairytale_qa,
short_stories}.jsonl.gz, dialogue/{sgd_train,self_dialogue,persona_chat,topical_chat}.jsonl.gz,
dialogue/personality_chat, dialogue/chatterbot_corpus, instruct/* and gsm8k/train.jsonl.

Invariants: a source gives the same rows in the same order every time. The text itself decides
whether it is held out: talks by their first message, stories by their title. Groups can be
recognized from the sentences alone, which are short enough for several of them to fit in one
prompt.
"""

import csv
import gzip
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from finetune.bundled_model.tables import is_kept_out

Row = dict[str, Any]
Groups = dict[str, list[str]]
Pair = tuple[str, str]
"""A user's message and its reply."""

KEPT_OUT_TALKS, KEPT_OUT_STORIES = 0.15, 0.05  # fractions
_SHORTEST, _LONGEST = 4, 26  # words
_PASSAGE = 3000  # characters
_LONGEST_ANSWER = 400
_TYPEWRITER = str.maketrans("‘’“”—–", "''\"\"--") | {ord("…"): "..."}
_OPENINGS = (
    *(f"how {word}" for word in "many much long far old".split()),
    *"how what who whose where when why which is are was do does did can could would will".split(),
    *"tell give write name describe explain find list make i please".split(),
)
# Facts that cannot be learned in talking, which this model should admit not to know, are left out.
_LEFT_OUT = set(
    "botprofile coding gossip history literature money movies politics psychology sports "
    "tech_support trivia".split()
)


def clean(text: str) -> str:
    """Normalize to typewriter quotes and single spaces: a small model has no spare vocabulary
    entries.
    """
    return re.sub(r"[ \t]+", " ", text.translate(_TYPEWRITER)).strip()


def chat(turns: Iterable[str], system: str = "") -> Row:
    """Alternating texts, user first, as one row of `messages`; a final message of the
    user is cut."""
    texts = list(turns)
    texts = texts[: len(texts) // 2 * 2]
    messages = [{"role": "system", "content": system}] if system else []
    for index, text in enumerate(texts):
        messages.append({"role": "assistant" if index % 2 else "user", "content": text})
    return {"messages": messages}


def _json_rows(path: Path) -> Iterator[Row]:
    """The rows of a JSONL file, packed or not."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


# --- text --------------------------------------------------------------------------------


def books(folder: Path) -> Iterator[Row]:
    """Passages of about 3,000 characters, lines unwrapped, cut at paragraphs."""
    for path in sorted(folder.glob("*.txt")):
        paragraphs = re.split(r"\n\s*\n", path.read_text(encoding="utf-8-sig"))
        lines = (clean(paragraph.replace("\n", " ").replace("_", "")) for paragraph in paragraphs)
        yield from _passages(lines, "\n")


def stories(path: Path, *, kept_out: bool = False) -> Iterator[Row]:
    """Fairy tales or short stories, cut at sentences: those for training, or the held-out ones."""
    for row in _json_rows(path):
        if is_kept_out(["story", row["title"]], KEPT_OUT_STORIES) == kept_out:
            yield from _passages(re.split(r"(?<=[.!?])\s+", clean(row["text"])), " ")


def _passages(parts: Iterable[str], joint: str) -> Iterator[Row]:
    """Parts joined to texts of a little over 3,000 characters; the last may be shorter."""
    passage: list[str] = []
    for part in filter(None, parts):
        passage.append(part)
        if sum(map(len, passage)) > _PASSAGE:
            yield {"text": joint.join(passage)}
            passage = []
    if passage:
        yield {"text": joint.join(passage)}


# --- chats -------------------------------------------------------------------------------


def schema_guided(path: Path) -> Iterator[Row]:
    """The two-speaker task dialogues of SGD; "S" is the assistant."""
    for row in _json_rows(path):
        turns = [(speaker, clean(text)) for speaker, text in row["turns"]]
        if turns and turns[0][0] == "U":
            yield chat(text for _, text in turns)


def instructions(folder: Path) -> Iterator[Row]:
    """Short instructions with short answers from three sets."""
    raschka = json.loads((folder / "raschka_1100.json").read_text(encoding="utf-8"))
    rows = [(row["instruction"], row["input"], row["output"]) for row in raschka]
    for row in _json_rows(folder / "self_instruct_seed_175.jsonl"):
        rows += [(row["instruction"], i["input"], i["output"]) for i in row["instances"]]
    for row in _json_rows(folder / "dolly_3k.jsonl"):
        user, assistant = row["messages"][:2]
        rows.append((user["content"], "", assistant["content"]))
    for instruction, context, output in rows:
        question = clean(f"{instruction}\n{context}" if context else instruction)
        answer = clean(output)
        if answer and max(len(question), len(answer)) <= _LONGEST_ANSWER:
            yield chat([question, answer])


def grade_school(path: Path) -> Iterator[Row]:
    """The word problems of GSM8K, with their calculator calls and the result at the end."""
    for row in _json_rows(path):
        answer = clean(row["answer"]).replace("\n#### ", "\nThe answer is ")
        if len(answer) <= _LONGEST_ANSWER:
            yield chat([clean(row["question"]), answer])


def personality(folder: Path) -> list[Pair]:
    """The friendly tone: one person should answer in one voice."""
    path = folder / "Queries_Responses_Friendly_QnAMaker.tsv"
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [(clean(row["Question"]), clean(row["Answer"])) for row in rows]


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


def talks(path: Path, names: Sequence[str], seed: int, *, kept_out: bool = False) -> Iterator[Row]:
    """Talks of two people, the second as the assistant: those for training, or the held-out ones.

    Turns are texts, or pairs of a speaker and a text. names: fill the places for speakers' names; a
    talk ends before a turn with a place for something else.
    """
    draw = random.Random(seed)
    for row in _json_rows(path):
        turns = [turn if isinstance(turn, str) else turn[1] for turn in row["turns"]]
        # In any spelling, a first message is on one side.
        first = re.findall(r"[a-z0-9]+", turns[0].lower()) if turns else []
        if not turns or is_kept_out(["first message", first], KEPT_OUT_TALKS) != kept_out:
            continue
        both = draw.sample(names, 2)
        texts = (
            written_out(with_names(clean(turn), both, number % 2))
            for number, turn in enumerate(turns)
        )
        whole = list(takewhile(lambda text: text and not _PLACE.search(text), texts))
        if len(whole) > 1:
            yield chat(whole)


_PLACE = re.compile(r"[\[(][^\])]*[\])]")
_NAME_PLACE = re.compile(
    r"[\[(](?:user ?(?P<number>[12])(?:'s)?(?: name)?|(?:your |insert )?name|username)[\])]", re.I
)
_OWN = re.compile(r"(?:I'm|I am|name is|name's|call me|this is)\s*$", re.I)


def with_names(text: str, names: Sequence[str], speaker: int) -> str:
    """Fill the places for the two speakers' names in a text.

    names: of both speakers. speaker: 0 or 1, the one who speaks. A place without a speaker is the
    speaker's own after words such as "I'm", else the other's.
    """

    def name(match: re.Match[str]) -> str:
        if match["number"]:
            return names[int(match["number"]) - 1]
        own = _OWN.search(text[: match.start()])
        return names[speaker if own else 1 - speaker]

    return _NAME_PLACE.sub(name, text)


def written_out(text: str) -> str:
    """Turn a hastily typed text into sentences: capitals at the beginning, a mark at the end."""
    text = re.sub(r"\bi\b(?=[ ',.?!]|$)", "I", text)
    text = re.sub(r"(^|[.!?] +)([a-z])", lambda match: match[1] + match[2].upper(), text)
    return text + "." if text and text[-1].isalnum() else text


# --- sentences in groups -----------------------------------------------------------------


def groupings(data: Path) -> dict[str, Groups]:
    """Ways to group the sentences of the allowed texts."""
    services = _by_service(data / "dialogue" / "sgd_train.jsonl.gz")
    asked = (instructions(data / "instruct"), grade_school(data / "gsm8k" / "train.jsonl"))
    first, problems = ([row["messages"][0]["content"] for row in rows] for rows in asked)
    source = {
        "books": _sentences(row["text"] for row in books(data / "books")),
        "services": [sentence for group in services.values() for sentence in group],
        "instructions": _sentences(first),
        "problems": _sentences(problems),
    }
    openings: defaultdict[str, list[str]] = defaultdict(list)
    for sentence in dict.fromkeys(each for group in source.values() for each in group):
        words = sentence.lower()
        opening = next((start for start in _OPENINGS if words.startswith(start + " ")), None)
        if opening:
            openings[opening].append(sentence)
    return {"service": services, "source": source, "opening": dict(openings)}


def _by_service(path: Path) -> Groups:
    """The users' messages in the task dialogues of SGD, by the only service of a dialogue."""
    groups: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for row in _json_rows(path):
        services = {service.partition("_")[0] for service in row["services"]}
        for speaker, text in row["turns"] if len(services) == 1 else ():
            if speaker == "U" and 5 <= len(text.split()) <= _LONGEST:
                groups[min(services)][text] = None
    return {name: list(texts) for name, texts in groups.items()}


def _sentences(texts: Iterable[str]) -> list[str]:
    """The sentences of texts which are neither long nor short, without repetitions."""
    found: dict[str, None] = {}
    for line in (line for text in texts for line in text.split("\n")):
        for sentence in re.split(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]*[A-Z])", line):
            if _SHORTEST <= len(sentence.strip(" \"'\n").split()) <= _LONGEST:
                found[sentence.strip(" \"'\n")] = None
    return list(found)


def common_words(texts: Iterable[str], count: int) -> list[str]:
    """The most frequent words of three to nine lower-case letters, the most frequent first."""
    counts = Counter(word for text in texts for word in re.findall(r"\b[a-z]{3,9}\b", text))
    by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [word for word, _ in by_count[:count]]
