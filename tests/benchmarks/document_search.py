"""How often the passage with the answer is found, and how well scores tell whether there is one.

    python tests/benchmarks/document_search.py fairytale_qa.jsonl.gz bm25 encoder:tfidf …

Folders of 3, 20 and 200 fairy tales; a hundred questions on them (fewer in the smallest) whose
answer of three words or more is in the tale, and a hundred on tales that are not there. threshold:
the score that nineteen of twenty of the answered questions reach; others: the share of the other
questions that reach it, too. A threshold is of use where that is far below 100 %.
"""

import gzip
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from chatapp.dialogue.documents.index import Passage
from chatapp.dialogue.documents.search import Documents
from chatapp.tasks.files.documents import DocumentSet

SIZES = (3, 20, 200)
QUESTIONS = 100
PLACES = (1, 3, 5)

Tale = dict[str, Any]


def plain(text: str) -> str:
    return " ".join(text.lower().split())


def questions_on(tales: list[Tale], draw: random.Random) -> list[tuple[str, str]]:
    """Questions with answers that are in their tale."""
    pairs = [
        (pair["question"], plain(pair["answer"]).rstrip("."))
        for tale in tales
        for pair in tale["questions"]
        if len(pair["answer"].split()) >= 3
        and plain(pair["answer"]).rstrip(".") in plain(tale["text"])
    ]
    return draw.sample(pairs, min(QUESTIONS, len(pairs)))


def place_of(answer: str, passages: list[Passage]) -> int:
    """The place, from 1, of the first passage with the answer; more than all without one."""
    places = (place for place, passage in enumerate(passages, 1) if answer in plain(passage.text))
    return next(places, max(PLACES) + 1)


def measure(method: str, size: int, tales: list[Tale], folder: Path) -> str:
    """A row of the table."""
    draw = random.Random(size)
    here, elsewhere = tales[:size], tales[max(SIZES) :]
    for number, tale in enumerate(here):
        (folder / f"{number}.txt").write_text(tale["text"], encoding="utf-8")
    documents = Documents(DocumentSet((str(folder),), method, limit=max(PLACES)))
    documents.renew()
    results = [
        (answer, documents.search(question)) for question, answer in questions_on(here, draw)
    ]
    places = [place_of(answer, passages) for answer, passages in results]
    right = sorted(
        passages[0].score
        for place, (_, passages) in zip(places, results, strict=True)
        if place <= max(PLACES)
    )
    threshold = right[len(right) // 20]
    others = [documents.search(question) for question, _ in questions_on(elsewhere, draw)]
    reached = sum(bool(passages) and passages[0].score >= threshold for passages in others)
    shares = "  ".join(f"{sum(p <= most for p in places) / len(places):4.0%}" for most in PLACES)
    return (
        f"{method:15}  {size:5}  {len(results):9}  {shares}  {threshold:9.3f}  "
        f"{reached / len(others):6.0%}"
    )


def main(data: Path, methods: list[str]) -> None:
    """Print the table."""
    with gzip.open(data, "rt", encoding="utf-8") as lines:
        tales = [json.loads(line) for line in lines]
    random.Random(0).shuffle(tales)
    print("method           tales  questions     1     3     5  threshold  others")
    for method in methods:
        for size in SIZES:
            with tempfile.TemporaryDirectory() as folder:
                print(measure(method, size, tales, Path(folder)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
