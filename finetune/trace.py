"""`finetune trace`: which training rows taught a run a reply, and which of its words are copies.

Invariant: what it will cost is shown before it starts.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from chatapp.common.foreign import printable
from chatapp.engine.models.loading import load_model
from chatapp.tasks.evaluation.language_modelling import perplexity
from finetune.config.sections import ConfigError
from finetune.measuring.influence import (
    FIRST,
    Influence,
    LeaveOneOut,
    Proof,
    Tell,
    TrainedRow,
    checkpoints,
    leave_one_out,
    prove,
    trace,
    trained_rows,
)
from finetune.measuring.retraining import Retraining
from finetune.measuring.verbatim import ORDER, Recall, find_copies
from finetune.training.display import duration, one_line

SHOWN = 10
"""Rows in the table."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A reply with the scores of the rows, the proof, and perhaps what single rows are worth."""

    prompt: str
    reply: str
    rows: list[TrainedRow]
    influence: Influence
    proof: Proof
    exact: LeaveOneOut | None

    def order(self) -> list[int]:
        """The rows by falling score of their gradients."""
        order: list[int] = np.argsort(-self.influence.gradient, kind="stable").tolist()
        return order

    def document(self) -> dict[str, Any]:
        """Plain data for --json."""
        proof = asdict(self.proof)
        return {
            "prompt": self.prompt,
            "reply": self.reply,
            "rows": [
                {
                    "row": self.rows[number].location,
                    "score": float(self.influence.gradient[number]),
                    "text_similarity": float(self.influence.text[number]),
                    "prompt": self.rows[number].prompt,
                    "reply": self.rows[number].reply,
                }
                for number in self.order()
            ],
            "proof": {"log_probability": proof.pop("whole"), **proof},
            "leave_one_out": self._exact(),
        }

    def _exact(self) -> dict[str, Any] | None:
        if self.exact is None:
            return None
        pairs = zip(self.exact.numbers, self.exact.changes, strict=True)
        return {
            "rows": [{"row": self.rows[one].location, "change": change} for one, change in pairs],
            "rank_correlation": self.exact.correlations,
        }

    def shown(self) -> RenderableType:
        """The first rows, the proof, and the rank correlations."""
        table = Table(
            "", "gradient", "text", "row", title="Rows that taught it", title_justify="left"
        )
        exact = dict(zip(self.exact.numbers, self.exact.changes, strict=True)) if self.exact else {}
        if exact:
            table.add_column("lost without it")
        for rank, number in enumerate(self.order()[:SHOWN], 1):
            row = self.rows[number]
            where = Text(printable(row.location), "dim")
            words = Text(f"{one_line(row.prompt)} → {one_line(row.reply)}")
            scores = (self.influence.gradient[number], self.influence.text[number])
            cells: list[RenderableType] = [
                str(rank),
                *(f"{score:.3f}" for score in scores),
                Group(words, where),
            ]
            if exact:
                cells.append(f"{exact[number]:+.3f}" if number in exact else "")
            table.add_row(*cells)
        parts: list[RenderableType] = [table, _proof_table(self.proof)]
        if self.exact:
            parts += [
                Text(
                    f"Rank correlation with training without each of {len(self.exact.numbers):,} "
                    f"rows: {name} {value:+.2f}"
                )
                for name, value in self.exact.correlations.items()
                if value is not None
            ]
        return Group(*parts)


def _proof_table(proof: Proof) -> Table:
    title = "Log-probability of the reply, in nats"
    table = Table("trained", "nats", "change", title=title)
    names = {
        "before": "not yet",
        "whole": "on all rows",
        "without_first": f"without the first {FIRST} by gradient",
        "without_similar": f"without the {FIRST} most similar texts",
        "without_random": f"without {FIRST} random rows",
    }
    for key, nats in asdict(proof).items():
        change = "" if key == "whole" else f"{nats - proof.whole:+.3f}"
        table.add_row(names[key], f"{nats:.3f}", change)
    return table


def trace_reply(
    run: Path, prompt: str, reply: str, exact: int, device: str, console: Console
) -> Traced:
    """Find the rows of a run that taught it a reply.

    exact: rows without each of which it is trained again. Raises ConfigError and ModelError.
    """
    again = Retraining(run, device)
    rows = trained_rows(again)
    target = again.encode_reply(prompt, reply)
    if not target["response_mask"].any():
        raise ConfigError("--reply: expected a text")
    console.print(_cost(again, rows, min(exact, len(rows))), highlight=False)
    seed = again.setup.config.seed
    with console.status("reading") as status:
        tell = _telling(status.update)
        influence = trace(again, rows, prompt, reply, tell)
        proof = prove(again, rows, influence, target, seed, tell)
        one_out = (
            leave_one_out(again, rows, influence, target, exact, seed, tell) if exact else None
        )
    return Traced(prompt, reply, rows, influence, proof, one_out)


def _telling(update: Callable[[Text], None]) -> Tell:
    def tell(what: str, done: int, total: int) -> None:
        update(Text(f"{what}, {done:,} of {total:,}"))

    return tell


def _cost(again: Retraining, rows: list[TrainedRow], exact: int) -> str:
    """How often the run is trained again, and about how long all of it takes."""
    row = again.row_of(again.rows.examples[0])
    again.gradients(row)  # the first one is slow
    begun = perf_counter()
    again.gradients(row)
    seconds_a_row = 3 * (perf_counter() - begun)  # with the products
    points = len(checkpoints(again.steps))
    trainings = 1 + 3 + exact
    seconds = trainings * again.seconds + points * len(again.rows.examples) * seconds_a_row
    return (
        f"The run is trained again {trainings:,} times, {again.steps:,} steps each, and the "
        f"gradients of {len(rows):,} rows are compared at {points} steps: about "
        f"{duration(seconds)}. Ctrl+C stops it."
    )


@dataclass(frozen=True, slots=True)
class Copies:
    """A reply with its copies. model_nats: of the whole reply under the run's model."""

    reply: str
    recall: Recall
    model_nats: float

    def document(self) -> dict[str, Any]:
        """Plain data for --json."""
        return {
            "reply": self.reply,
            "copies": [
                {"text": self.reply[copy.start : copy.end], **asdict(copy)}
                for copy in self.recall.copies
            ],
            "words": self.recall.words,
            "nats_per_word": {
                "model": self.model_nats / self.recall.words,
                "ngram": self.recall.ngram_nats / self.recall.words,
            },
        }

    def shown(self) -> RenderableType:
        """The reply with its copies underlined, and where they are from."""
        text = Text(printable(self.reply))
        table = Table("copy", "words", "times", "first in row")
        for copy in self.recall.copies:
            text.stylize("underline", copy.start, copy.end)
            span = Text(printable(self.reply[copy.start : copy.end]))
            place = Text(printable(copy.row))
            table.add_row(span, f"{copy.words:,}", f"{copy.count:,}", place)
        words = self.recall.words
        nats = (
            f"{self.model_nats / words:.2f} nats a word by the model, "
            f"{self.recall.ngram_nats / words:.2f} by the {ORDER}-gram of its training files"
        )
        none = Text("No longer span of it stands in the training files.")
        return Group(text, table if self.recall.copies else none, Text(nats))


def trace_copies(run: Path, reply: str, device: str) -> Copies:
    """Find what of a reply stands in the training files. Raises ConfigError and ModelError."""
    recall = find_copies(run, reply)
    model = load_model(str(run), device=device)
    return Copies(reply, recall, perplexity(model, reply).negative_log_likelihood)
