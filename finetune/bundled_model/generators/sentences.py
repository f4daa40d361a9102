"""Sentences of the allowed texts, grouped in ways that can be told from the sentences alone.

Keep: sentences are short enough for several of them to stand in one prompt.
"""

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

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
    """What users say in the task dialogues of SGD, by the one service a dialogue is about."""
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
        opening = next((each for each in OPENINGS if words.startswith(each + " ")), None)
        if opening:
            groups[opening].append(sentence)
    return dict(groups)
