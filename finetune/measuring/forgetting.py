"""What a model lost and gained by a training: general questions and a text, before and after.

The questions are in general.jsonl: `question`, and `answers`, one of which has to be among the
words of the reply. They are 200 facts, words and sums of two digits, which the bundled model knows
and most small models. The text is the one on which heads are measured.
"""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chatapp.common.foreign import parse_json
from chatapp.dialogue.events import Options
from chatapp.dialogue.turn import write_prompt
from chatapp.dialogue.writers.choosing import choose_template, writer_for
from chatapp.dialogue.writers.prompt import Exchange
from chatapp.engine.backends.encoder_decoder import EncoderDecoderModel
from chatapp.engine.model import ContextOverflow, LanguageModel, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.lab.heads import sample_texts
from chatapp.tasks.metrics import mcnemar
from finetune.training.answers import greedy_replies

ITEMS = Path(__file__).with_name("general.jsonl")
LEAST = 20
"""Questions below which nothing is said: the training was too short for more."""

_AT_ONCE = 20
_TOKENS = 24  # of a reply


@dataclass(frozen=True, slots=True)
class Forgetting:
    """n: questions that both were asked. before, after: those answered right. lost, gained: those
    that only the model before, and only the one after has right; p: of the exact McNemar test.
    text_before, text_after: nats a byte of the text; None for a model that has no loss of a text.
    """

    n: int
    before: int
    after: int
    lost: int
    gained: int
    p: float
    text_before: float | None
    text_after: float | None

    @property
    def words(self) -> str:
        """All of it in one line."""
        words = (
            f"of {self.n} general questions {self.before} were right before and {self.after} are "
            f"now: lost {self.lost}, gained {self.gained} (McNemar's exact p {self.p:.2g})"
        )
        if self.text_before is None or self.text_after is None:
            return words
        change = f"{self.text_before:.3f} before, {self.text_after:.3f} now"
        return f"{words}; a text that is not in the rows, nats a byte: {change}"

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the line."""
        return asdict(self) | {"words": self.words}


def measure_forgetting(
    before: str, after: str, questions: int, seconds: float, device: str = "auto"
) -> Forgetting | None:
    """Ask two models, the base of a run and its result, in at most so many seconds.

    questions: the most that are asked; fewer where the time is over. None below `LEAST`. Raises
    ModelError, and whatever a model raises that does not fit into the memory.
    """
    started = time.perf_counter()
    items = [parse_json(line) for line in ITEMS.read_text(encoding="utf-8").splitlines()]
    models = [load_model(name, device=device) for name in (before, after)]
    losses = [_nats_a_byte(model) for model in models]
    rights: tuple[list[bool], list[bool]] = ([], [])
    for first in range(0, min(questions, len(items)), _AT_ONCE):
        part = items[first : min(first + _AT_ONCE, questions)]
        for model, right in zip(models, rights, strict=True):
            right += _answered(model, part)
        used = time.perf_counter() - started
        if used * (1 + _AT_ONCE / len(rights[0])) > seconds:
            break
    n = len(rights[0])
    if n < LEAST:
        return None
    pairs = list(zip(*rights, strict=True))
    lost, gained = pairs.count((True, False)), pairs.count((False, True))
    return Forgetting(
        n, sum(rights[0]), sum(rights[1]), lost, gained, mcnemar(lost, gained), *losses
    )


def _answered(model: LanguageModel, items: list[dict[str, Any]]) -> Iterator[bool]:
    """Whether each question is answered right."""
    template = choose_template(model, "")
    writer, options = writer_for(model, template), Options(Sampling(max_tokens=_TOKENS))
    prompts = [write_prompt(writer, [Exchange(item["question"])], options).ids for item in items]
    replies = greedy_replies(model, template.stop, prompts, _TOKENS)
    for item, reply in zip(items, replies, strict=True):
        text = reply.text.casefold()
        yield any(
            re.search(rf"(?<!\w){re.escape(answer.casefold())}(?!\w)", text)
            for answer in item["answers"]
        )


def _nats_a_byte(model: LanguageModel) -> float | None:
    """The loss of the text by its bytes, so that tokenizers compare."""
    if isinstance(model, EncoderDecoderModel):
        return None
    text = sample_texts()[0]
    ids = model.tokenizer.encode(text)[: model.context - 1]
    with suppress(ContextOverflow):
        (scores,) = model.score([([model.tokenizer.end_id], ids)])
        return -sum(scores) / len(model.tokenizer.decode(ids).encode())
    return None
