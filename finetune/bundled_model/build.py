"""The documents that the bundled model is trained on, one file a source or generator.

    python -m finetune.bundled_model DATA OUT [--teacher MODEL.gguf] [--seed N] [--scale S]

DATA is a folder of the sources that `sources` reads. OUT receives one JSONL file a source or
generator, `text`, `messages` or `parts` a line, and in OUT/kept_out what serves measuring alone.
The teacher's answers, from which taught.jsonl is made, are kept in OUT/answers.jsonl, which holds
no documents.

Invariant: the same data, answers, seed and scale give the same files, byte for byte, and a file is
there whole or not at all.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from chatapp.common.userfiles import write_whole
from chatapp.tasks.evaluation.gpt3_tasks import own_words
from finetune.bundled_model import chats, demonstrations, questions, sources
from finetune.bundled_model.teacher import TeacherAnswer, ask_teacher, read_answers, taught_chat

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

    read = {name: list(rows) for name, rows in _read(data, seed, kept_out=False)}
    yield from read.items()
    for name, rows in _read(data, seed, kept_out=True):
        yield f"kept_out/{name}", rows
    dialogue, groups = data / "dialogue", sources.groupings(data)
    yield "books", sources.books(data / "books")
    yield "sgd", sources.schema_guided(dialogue / "sgd_train.jsonl.gz")
    yield "instructions", sources.instructions(data / "instruct")
    yield "grade_school", sources.grade_school(data / "gsm8k" / "train.jsonl")
    friendly = sources.personality(dialogue / "personality_chat")
    general = sources.chatterbot(dialogue / "chatterbot_corpus")
    yield "smalltalk", chats.small_talk(friendly, general, count(16000), seed)

    words, tasks = own_words(), questions.all_tasks()
    sentences = [sentence for group in groups["source"].values() for sentence in group]
    spelt = questions.letter_tasks(sorted({*words, *sources.common_words(sentences, 4000)}))
    widest = questions.in_most_words(tasks)
    itself = chats.talks("itself")
    talks = [*itself, *chats.talks("everyday")]
    more_words = questions.in_more_words(tasks)
    asides, wide = chats.Asides(talks, tasks), chats.Asides(talks, more_words)
    begun = [row["messages"][0]["content"] for name in TALKS for row in read[name]]
    opened = [((opener,), replies) for opener in begun if (replies := chats.replies_to(opener))]
    made: dict[str, tuple[Callable[[random.Random], chats.Turns], int, int]] = {
        "spelling": (partial(chats.questions, tasks=questions.in_more_words(spelt)), 50000, 2),
        "close": (chats.close_talk, 20000, 3),
        "phrased_questions": (partial(chats.questions, tasks=widest), 80000, 6),
        "calls": (chats.calls, 30000, 0),
        "subjects": (partial(chats.stories, asides=wide), 24000, 0),
        "everyday": (partial(chats.everyday, about_itself=itself), 20000, 0),
        "openers": (partial(chats.openers, answered=opened, asides=talks), 20000, 0),
        "abstention": (partial(chats.abstention, asides=wide), 30000, 0),
        "people": (partial(chats.people, asides=asides), 20000, 5),
        "follow_ups": (partial(chats.follow_ups, asides=asides), 12000, 0),
    }
    if taught:
        made["taught"] = (partial(taught_chat, answers=taught), 12000, 0)
    for name, (make, documents, more_seed) in made.items():
        yield name, chats.chat_rows(make, count(documents), seed + more_seed)

    few_shot = partial(demonstrations.training_rows, groups, words)
    yield "repetition", demonstrations.repetition_rows(words, sentences, count(16000), seed)
    yield "more_arithmetic", demonstrations.arithmetic_rows(count(40000), seed + 1)
    yield "few_shot_tasks", demonstrations.task_rows(tasks, count(12000), seed)
    yield "recall", demonstrations.recall_rows(sentences, words, count(20000), seed)
    yield "majority", demonstrations.majority_rows(sentences, count(6000), seed)
    yield "in_context_short", few_shot(count(20000), seed, most=6)
    yield "in_context", few_shot(count(40000), seed + 1, most=16)
    yield "more_in_context", few_shot(count(8000), seed + 2, most=12, noises=(0.1, 0.3, 0.45))


def _read(data: Path, seed: int, *, kept_out: bool) -> Iterator[tuple[str, Rows]]:
    """Talks of people and stories by name: those for training or for measuring."""
    for name in TALKS:
        path = data / "dialogue" / f"{name}.jsonl.gz"
        yield name, sources.talks(path, chats.names(), seed, kept_out=kept_out)
    for name in ("fairytale_qa", "short_stories"):
        yield name, sources.stories(data / "books" / f"{name}.jsonl.gz", kept_out=kept_out)
