"""Let a larger model tell short stories, each about a given subject.

    python -m finetune.bundled_model.storyteller MODEL.gguf OUT.jsonl [--rounds N]

OUT, which may hold the answers of `teacher`, receives one line a story that is kept: subject, kind,
story. A round asks for one story about each subject. Stories are drawn, with a seed for each batch.
A second start continues after the last round that OUT has a story of.

Invariant: a story stays with its subject and ends, or it is left out; see `subjects.good_story`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from finetune.bundled_model.generators.subjects import (
    TaughtStory,
    good_story,
    subjects,
    with_article,
)
from finetune.bundled_model.teacher import Teacher
from finetune.recipes import run

_INSTRUCTION = "You tell very short stories to small children. You use simple words."
_REQUESTS = (
    "Write a story of five sentences about {x}.",
    "Tell me a very short story about {x} that helps a friend. Five sentences.",
    "Tell me a very short story about {x} that is lost. Five sentences.",
    "Write a funny story of six sentences about {x}.",
    "Write a story of five sentences about {x} and a big surprise.",
    "Tell a goodnight story of six sentences about {x}.",
)
_BATCH, _MOST_TOKENS = 48, 190


def tell(teacher: Teacher, round_number: int) -> Iterator[TaughtStory]:
    """Yield the good stories of one round, batch by batch."""
    pairs = [(kind, subject) for kind, names in subjects().items() for subject in names]
    request = _REQUESTS[round_number % len(_REQUESTS)]
    for start in range(0, len(pairs), _BATCH):
        batch = pairs[start : start + _BATCH]
        texts = [request.replace("{x}", with_article(subject)) for _, subject in batch]
        seed = 10_000 * round_number + start
        replies = teacher.drawn(_INSTRUCTION, texts, most_tokens=_MOST_TOKENS, seed=seed)
        for (kind, subject), reply in zip(batch, replies, strict=True):
            if story := good_story(reply, subject):
                yield TaughtStory(subject, kind, story)


def read_stories(path: Path) -> list[TaughtStory]:
    """The stories in a file of answers and stories."""
    return [
        TaughtStory(row["subject"], row["kind"], row["story"])
        for row in _rows(path)
        if "story" in row
    ]


def _rows(path: Path) -> Sequence[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(
    model: Annotated[Path, typer.Argument(help="a chat model as a GGUF file", exists=True)],
    out: Annotated[Path, typer.Argument(help="the file of answers and stories")],
    rounds: Annotated[int, typer.Option(min=1, help="stories asked for about each subject")] = 6,
) -> None:
    """Add the stories of the rounds that OUT does not contain yet."""
    begun = 1 + max((row["round"] for row in _rows(out) if "round" in row), default=-1)
    teacher = Teacher(model, "bfloat16")
    with out.open("a", encoding="utf-8") as file:
        for number in range(begun, rounds):
            for row in tell(teacher, number):
                line = {**asdict(row), "round": number}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.flush()
    print(f"{out}: {len(read_stories(out)):,} stories")


if __name__ == "__main__":
    run(write)
