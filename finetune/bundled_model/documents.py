"""The documents that the bundled model is trained on, one file a source or generator.

    python -m finetune.bundled_model DATA OUT [--teacher MODEL.gguf] [--seed N] [--scale S]

DATA is a folder that holds the sources named in chatapp/bundled/README.md: books/*.txt,
books/{fairytale_qa,short_stories}.jsonl.gz, dialogue/{sgd_train,self_dialogue,persona_chat,
topical_chat}.jsonl.gz, dialogue/personality_chat, dialogue/chatterbot_corpus, instruct/* and
gsm8k/train.jsonl. OUT receives one JSONL file a source or generator, `text`, `messages` or
`parts` a line, and in OUT/kept_out what serves measuring alone. The teacher's answers, from which
taught.jsonl is made, are kept in OUT/answers.jsonl, which holds no documents.

Invariant: the same data, answers, seed and scale give the same files, byte for byte, and a file is
there whole or not at all.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from chatapp.common.userfiles import write_whole
from chatapp.tasks.evaluation.gpt3_tasks import own_words
from finetune.bundled_model.generators import (
    abstention,
    arithmetic,
    calls,
    dialogues,
    everyday,
    incontext,
    openers,
    patterns,
    people,
    subjects,
)
from finetune.bundled_model.generators.tasks import (
    all_tasks,
    in_more_words,
    in_most_words,
    letter_tasks,
)
from finetune.bundled_model.smalltalk import ABOUT_ITSELF, small_talk
from finetune.bundled_model.sources import (
    books,
    common_words,
    grade_school,
    groupings,
    instructions,
    schema_guided,
)
from finetune.bundled_model.stories import stories, talks
from finetune.bundled_model.teacher import TeacherAnswer, ask_teacher, chats, read_answers

Rows = Iterable[dict[str, Any]]

TALKS = ("self_dialogue", "persona_chat", "topical_chat")


def build(
    data: Annotated[Path, typer.Argument(help="folder of the source data", exists=True)],
    out: Annotated[Path, typer.Argument(help="folder to write to")],
    teacher: Annotated[
        Path | None,
        typer.Option(help="a chat model (GGUF) to ask what OUT has no answer to", exists=True),
    ] = None,
    seed: int = 0,
    scale: Annotated[float, typer.Option(min=0.001, help="how much of each generator")] = 1.0,
) -> None:
    """Write the training documents of the bundled model."""
    (out / "kept_out").mkdir(parents=True, exist_ok=True)
    answers = out / "answers.jsonl"
    if teacher:
        ask_teacher(teacher, answers)
    elif not answers.exists():
        print(f"{out / 'taught.jsonl'}: is not written, as there are no answers; use --teacher")
    for name, rows in _files(data, read_answers(answers), seed, scale):
        path = out / f"{name}.jsonl"
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        write_whole(path, "".join(lines))
        print(f"{path}: {len(lines):,} documents", flush=True)


def _files(
    data: Path, taught: Sequence[TeacherAnswer], seed: int, scale: float
) -> Iterator[tuple[str, Rows]]:
    """Each file's name and its rows."""

    def count(rows: int) -> int:
        return max(1, round(rows * scale))

    talks_and_stories = {
        name: list(rows) for name, rows in _talks_and_stories(data, seed, kept_out=False)
    }
    yield from talks_and_stories.items()
    for name, rows in _talks_and_stories(data, seed, kept_out=True):
        yield f"kept_out/{name}", rows
    yield "books", books(data / "books")
    yield "sgd", schema_guided(data / "dialogue" / "sgd_train.jsonl.gz")
    yield "instructions", instructions(data / "instruct")
    yield "grade_school", grade_school(data / "gsm8k" / "train.jsonl")
    yield "smalltalk", small_talk(data / "dialogue", count(16000), seed)
    if taught:
        yield "taught", chats(taught, count(12000), seed)

    words, tasks = own_words(), all_tasks()
    groups = groupings(data)
    sentences = [sentence for group in groups["source"].values() for sentence in group]
    spelt = in_more_words(letter_tasks(sorted({*words, *common_words(sentences, 4000)})))
    question_tasks = in_more_words(tasks)
    asides = [*ABOUT_ITSELF, *everyday.talks()]
    phrased_tasks = in_most_words(tasks)
    yield "spelling", dialogues.question_rows(spelt, count(50000), seed + 2)
    yield "close", dialogues.close_rows(count(20000), seed + 3)
    yield "phrased_questions", dialogues.question_rows(phrased_tasks, count(80000), seed + 6)
    yield "calls", calls.rows(count(30000), seed)
    yield "subjects", subjects.rows(asides, question_tasks, count(24000), seed)
    yield "everyday", everyday.rows(ABOUT_ITSELF, count(20000), seed)
    begun = [row["messages"][0]["content"] for name in TALKS for row in talks_and_stories[name]]
    yield "openers", openers.rows(begun, asides, count(20000), seed)
    yield "abstention", abstention.rows(asides, question_tasks, count(30000), seed)
    yield "people", people.rows(asides, tasks, count(20000), seed + 5)
    yield "follow_ups", dialogues.rows(asides, tasks, count(12000), seed)
    yield "repetition", patterns.rows(words, sentences, count(16000), seed)
    yield "more_arithmetic", arithmetic.rows(count(40000), seed + 1)

    noises = (0.1, 0.3, 0.45)
    short = incontext.training_rows(groups, words, count(20000), seed, 6)
    long = incontext.training_rows(groups, words, count(40000), seed + 1, 16)
    more = incontext.training_rows(groups, words, count(8000), seed + 2, 12, noises)
    yield "few_shot_tasks", incontext.task_rows(tasks, count(12000), seed)
    yield "recall", incontext.recall_rows(sentences, words, count(20000), seed)
    yield "majority", incontext.majority_rows(sentences, count(6000), seed)
    yield "in_context_short", short
    yield "in_context", long
    yield "more_in_context", more


def _talks_and_stories(data: Path, seed: int, *, kept_out: bool) -> Iterator[tuple[str, Rows]]:
    """Talks of people and stories by name: those for training or for measuring."""
    for name in TALKS:
        path = data / "dialogue" / f"{name}.jsonl.gz"
        yield name, talks(path, people.names(), seed, kept_out=kept_out)
    for name in ("fairytale_qa", "short_stories"):
        yield name, stories(data / "books" / f"{name}.jsonl.gz", kept_out=kept_out)
