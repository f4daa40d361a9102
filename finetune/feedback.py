"""`finetune feedback`: feedback on replies in the chat, as rows and a small configuration."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any

from chatapp.common.userfiles import write_whole
from chatapp.dialogue.feedback import FeedbackFormat, feedback_rows, rows_of_model
from chatapp.dialogue.store import Store
from chatapp.engine.models.resolving import find_model
from finetune.config.sections import ConfigError

Rows = Sequence[dict[str, Any]]
_STEPS = 40
_BATCH = 4
_RATE, _ADAPTER_RATE = 1e-4, 5e-4
_HELD_OUT_FROM = 100
_SMALL = 200_000_000
"""Bytes of weights up to which the whole model is trained; a larger one gets an adapter."""


@dataclass(frozen=True, slots=True)
class FeedbackMethod:
    """A way to learn from feedback.

    needed: rows; of verdicts, at least a quarter of them good and a quarter bad.
    """

    format: FeedbackFormat
    words: str
    needed: int
    objective: str


LESSONS = (
    FeedbackMethod(
        FeedbackFormat.DPO,
        "preferences",
        8,
        'kind = "dpo"\naux_weight = 1.0  # the supervised term keeps the better replies likely',
    ),
    FeedbackMethod(FeedbackFormat.SFT, "corrections", 8, 'kind = "l3"\naux_weight = 0.0'),
    FeedbackMethod(FeedbackFormat.KTO, "verdicts", 16, 'kind = "kto"'),
)
"""In the order of choice. A correction is also a preference over its own reply."""


def write_lesson(
    store: Store,
    chats: Iterable[int],
    wanted: FeedbackFormat | None,
    model: str,
    output: Path | None,
) -> tuple[Path, str]:
    """Write the rows of a lesson and their configuration; return the latter, and the number of
    rows.

    chats: their numbers; empty for all. wanted: the lesson; None for the first one with enough
    feedback. model: the one to train, on its own replies. output: the folder of the run; None for
    a new one in runs. Raises ConfigError, ModelError and StoreError.
    """
    ids = list(chats) or [chat.id for chat in store.chats(limit=sys.maxsize)]
    rows: dict[FeedbackFormat, Rows] = {
        lesson.format: rows_of_model(
            (row for id in ids for row in feedback_rows(store, id, lesson.format)), model
        )
        for lesson in LESSONS
    }
    lesson = choose(rows, wanted)
    chosen = rows[lesson.format]
    if output is None:
        names = (Path("runs") / f"feedback-{number}" for number in count(1))
        output = next(path for path in names if not any(path.parent.glob(f"{path.name}*")))
    path = write_configuration(lesson, chosen, model, output)
    return path, f"{len(chosen)} {lesson.words}"


def choose(
    rows: Mapping[FeedbackFormat, Rows], wanted: FeedbackFormat | None = None
) -> FeedbackMethod:
    """The wanted lesson, else the first one with enough rows.

    Raises ConfigError with the existing and the required number.
    """
    lessons = [lesson for lesson in LESSONS if wanted in (None, lesson.format)]
    for lesson in lessons:
        if _is_enough(lesson, rows[lesson.format]):
            return lesson
    counts = ", ".join(
        f"{len(rows[lesson.format])} {lesson.words} of {lesson.needed}" for lesson in lessons
    )
    raise ConfigError(
        f"there is not enough feedback to learn from: {counts} that are needed (of verdicts a "
        "quarter good and a quarter bad); rate or correct more of the model's replies"
    )


def _is_enough(lesson: FeedbackMethod, rows: Rows) -> bool:
    if lesson.format is FeedbackFormat.KTO:
        good = sum(row["label"] for row in rows)
        if min(good, len(rows) - good) < lesson.needed // 4:
            return False
    return len(rows) >= lesson.needed


def write_configuration(lesson: FeedbackMethod, rows: Rows, model: str, output: Path) -> Path:
    """Write OUTPUT.jsonl and OUTPUT.toml; return the latter. Raises ConfigError, ModelError."""
    names = [output.with_name(output.name + ending) for ending in (".jsonl", ".toml")]
    for path in (output, *names):
        if path.exists():
            raise ConfigError(f"{path} is there already; name another --output")
    files = find_model(model)
    size = sum(file.stat().st_size for file in files.path.glob("*.safetensors"))
    full = files.is_adapter or 0 < size <= _SMALL
    epochs = max(1, ceil(_STEPS * _BATCH / len(rows)))
    output.parent.mkdir(parents=True, exist_ok=True)
    write_whole(names[0], "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    write_whole(
        names[1],
        f"""\
# Feedback on replies in the chat: {len(rows)} {lesson.words}.
model = {_quoted(model)}
output = {_quoted(str(output))}

[data]
train = {_quoted(str(names[0]))}
held_out = {0.1 if len(rows) >= _HELD_OUT_FROM else 0.0}
too_long = "truncate-history"
bad_rows = "skip"

[objective]
{lesson.objective}

[train]
method = "{"full" if full else "lora"}"
learning_rate = {_RATE if full else _ADAPTER_RATE}
epochs = {epochs}
batch_size = {_BATCH}
""",
    )
    return names[1]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
