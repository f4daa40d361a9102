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
from finetune.bundled_model.teacher import ask_teacher, read_answers, taught_chat

Rows = Iterable[dict[str, Any]]

Maker = Callable[[random.Random], chats.Turns | sources.Row | None]
"""Draws the turns of a chat, or a row, or none where the draw does not suit."""

TALKS = ("self_dialogue", "persona_chat", "topical_chat")

# Of each generator, how many documents it makes, and what is added to the seed.
DOCUMENTS = {
    "smalltalk": (16000, 0),
    "spelling": (50000, 2),
    "close": (20000, 3),
    "phrased_questions": (80000, 6),
    "calls": (30000, 0),
    "subjects": (24000, 0),
    "everyday": (20000, 0),
    "openers": (20000, 0),
    "abstention": (30000, 0),
    "people": (20000, 5),
    "follow_ups": (12000, 0),
    "taught": (12000, 0),
    "repetition": (16000, 0),
    "more_arithmetic": (40000, 1),
    "few_shot_tasks": (12000, 0),
    "recall": (20000, 0),
    "majority": (6000, 0),
    "in_context_short": (20000, 0),
    "in_context": (40000, 1),
    "more_in_context": (8000, 2),
}


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
    data: Path, taught: Sequence[dict[str, str]], seed: int, scale: float
) -> Iterator[tuple[str, Rows]]:
    """Each file's name and its rows: first the texts of others, then what is generated."""
    read = {name: list(rows) for name, rows in _read(data, seed, kept_out=False)}
    yield from read.items()
    for name, rows in _read(data, seed, kept_out=True):
        yield f"kept_out/{name}", rows
    yield "books", sources.books(data / "books")
    yield "sgd", sources.schema_guided(data / "dialogue" / "sgd_train.jsonl.gz")
    yield "instructions", sources.instructions(data / "instruct")
    yield "grade_school", sources.grade_school(data / "gsm8k" / "train.jsonl")

    begun = [row["messages"][0]["content"] for name in TALKS for row in read[name]]
    makers = _makers(data, begun, taught)
    for name, (documents, more_seed) in DOCUMENTS.items():
        if name != "taught" or taught:
            count = max(1, round(documents * scale))
            yield name, _drawn(makers[name], count, seed + more_seed)


def _makers(data: Path, begun: Sequence[str], taught: Sequence[dict[str, str]]) -> dict[str, Maker]:
    """What draws a document of each file. begun: first messages of talks."""
    groups = sources.groupings(data)
    dialogue = data / "dialogue"
    friendly = chats.not_about_itself(sources.personality(dialogue / "personality_chat"))
    general = chats.not_about_itself(sources.chatterbot(dialogue / "chatterbot_corpus"))
    words, tasks = own_words(), questions.all_tasks()
    sentences = [sentence for group in groups["source"].values() for sentence in group]
    short, voted = (demonstrations.to_learn_from(sentences, most) for most in (14, 30))
    spelt = questions.letter_tasks(sorted({*words, *sources.common_words(sentences, 4000)}))
    more_words, most_words = questions.in_more_words(tasks), questions.in_most_words(tasks)
    talks = [*chats.talks("itself"), *chats.talks("everyday")]
    asides, wide = chats.Asides(talks, tasks), chats.Asides(talks, more_words)
    opened = [((opener,), replies) for opener in begun if (replies := chats.replies_to(opener))]
    texts = demonstrations.one_side(groups, 20)
    shown = demonstrations.all_sentences(texts)
    few_shot = partial(demonstrations.in_context, groupings=texts, sentences=shown, words=words)
    return {
        "smalltalk": partial(chats.small_talk, friendly=friendly, general=general),
        "spelling": partial(chats.questions, tasks=questions.in_more_words(spelt)),
        "close": chats.close_talk,
        "phrased_questions": partial(chats.questions, tasks=most_words),
        "calls": chats.calls,
        "subjects": partial(chats.stories, asides=wide),
        "everyday": chats.everyday,
        "openers": partial(chats.openers, answered=opened, asides=talks),
        "abstention": partial(chats.abstention, asides=wide),
        "people": partial(chats.people, asides=asides),
        "follow_ups": partial(chats.follow_ups, asides=asides),
        "taught": partial(taught_chat, answers=taught),
        "repetition": partial(demonstrations.repetition, words=words, sentences=sentences),
        "more_arithmetic": demonstrations.arithmetic,
        "few_shot_tasks": partial(demonstrations.few_shot_task, tasks=tasks),
        "recall": partial(demonstrations.recall, sentences=short, words=words),
        "majority": partial(demonstrations.majority, sentences=voted),
        "in_context_short": partial(few_shot, most=6),
        "in_context": partial(few_shot, most=16),
        "more_in_context": partial(few_shot, most=12, noises=(0.1, 0.3, 0.45)),
    }


def _drawn(make: Maker, count: int, seed: int) -> Rows:
    """`count` rows of a maker of turns or rows, which sometimes gives none."""
    draw = random.Random(seed)
    while count:
        if made := make(draw):
            yield made if isinstance(made, dict) else sources.chat(made)
            count -= 1


def _read(data: Path, seed: int, *, kept_out: bool) -> Iterator[tuple[str, Rows]]:
    """Talks of people and stories by name: those for training or for measuring."""
    for name in TALKS:
        path = data / "dialogue" / f"{name}.jsonl.gz"
        yield name, sources.talks(path, chats.names(), seed, kept_out=kept_out)
    for name in ("fairytale_qa", "short_stories"):
        yield name, sources.stories(data / "books" / f"{name}.jsonl.gz", kept_out=kept_out)
