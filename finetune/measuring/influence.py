"""Which training rows taught a run a reply: their gradients compared with the reply's, and what
the run is without them.

Invariant: an estimate never stands alone. Text similarity stands beside it, and trainings without
the first rows, by each of the two, and without random ones say what it is worth.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chatapp.lab.prompt_parts import rank_correlation
from chatapp.tasks.selection.similarity import TfidfIndex
from finetune.data.encoding import Span
from finetune.measuring.retraining import Retraining

CHECKPOINTS = 8
"""Steps of the run at which gradients are compared."""

FIRST = 5
"""Rows without which the run is trained again for the proof."""

Tell = Callable[[str, int, int], None]
"""Called with the current work, the finished number, and the total."""

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TrainedRow:
    """A training row, which may be several examples. prompt, reply: its text."""

    key: str
    location: str
    prompt: str
    reply: str
    examples: list[int]

    @property
    def text(self) -> str:
        return f"{self.prompt} {self.reply}"


def trained_rows(again: Retraining) -> list[TrainedRow]:
    """The rows of a run in their order; equal ones are one."""
    rows: dict[str, TrainedRow] = {}
    decode = again.setup.tokenizer.decode
    for index, example in enumerate(again.rows.examples):
        if example.key in rows:
            rows[example.key].examples.append(index)
            continue
        prompt, reply = (
            decode(example.ids[example.spans == span].tolist()).strip()
            for span in (Span.PROMPT, Span.RESPONSE)
        )
        rows[example.key] = TrainedRow(example.key, example.location, prompt, reply, [index])
    return list(rows.values())


@dataclass(frozen=True, slots=True)
class Influence:
    """Scores of a run's rows for one reply, each (rows,); larger is more.

    gradient: see `compare_gradients`. text: the cosine of TF-IDF vectors of prompt and reply.
    replayed: nats of the reply after the training that was repeated for the gradients.
    """

    gradient: Scores
    text: Scores
    replayed: float


def trace(
    again: Retraining, rows: Sequence[TrainedRow], prompt: str, reply: str, tell: Tell
) -> Influence:
    """Score the rows of a run by their influence on a reply to a prompt."""
    row = again.encode_reply(prompt, reply)
    gradient = compare_gradients(again, rows, row, tell)
    similar = TfidfIndex([one.text for one in rows]).scores(f"{prompt} {reply}")
    return Influence(gradient, similar.astype(np.float64), again.log_probability(row))


def compare_gradients(
    again: Retraining, rows: Sequence[TrainedRow], target: dict[str, Tensor], tell: Tell
) -> Scores:
    """TracIn (Pruthi et al. 2020), normalized and in the optimizer's own metric.

    Σ over steps t of η_t · cos(√P_t ∇ℓ(target), √P_t ∇ℓ(row)) / Σ η_t, from -1 to 1, at the middles
    of `CHECKPOINTS` equal stretches of the run, which is trained again for it. η is the learning
    rate. P is what the optimizer multiplies a gradient by: 1 / (√v̂ + ε) of AdamW's second moment,
    and for a matrix of Muon 1 / the root mean square of its momentum. Without the normalization
    rows with large gradients would be first for every reply.
    """
    total = np.zeros(len(rows))
    rates: list[float] = []
    examples = again.rows.examples
    points = checkpoints(again.steps)

    def compare(optimizer: torch.optim.Optimizer, rate: float) -> None:
        scales = _scales(optimizer, again.parameters)
        wanted = [s * g for s, g in zip(scales, again.gradients(target), strict=True)]
        size = _dot(wanted, again.gradients(target)) ** 0.5
        for number, row in enumerate(rows):
            tell("gradients", len(rates) * len(rows) + number, len(points) * len(rows))
            for index in row.examples:
                own = again.gradients(again.row_of(examples[index]))
                scaled = [s * g for s, g in zip(scales, own, strict=True)]
                norm = size * _dot(scaled, own) ** 0.5
                total[number] += rate * _dot(wanted, own) / norm if norm else 0.0
        rates.append(rate)

    again.train(at=points, call=compare)
    return total / (sum(rates) or 1.0)


def checkpoints(steps: int) -> list[int]:
    """The steps at which gradients are compared, at most `CHECKPOINTS`, counted from 0."""
    count = min(CHECKPOINTS, steps)
    return [int((number + 0.5) * steps / count) for number in range(count)]


def _scales(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> list[Tensor]:
    """What the optimizer multiplies the gradient of each parameter by, except the rate."""
    groups = {id(weight): group for group in optimizer.param_groups for weight in group["params"]}
    scales = []
    for weight in parameters:
        state, group = optimizer.state.get(weight, {}), groups[id(weight)]
        if "exp_avg_sq" in state:
            steps = float(state["step"])
            second = state["exp_avg_sq"] / (1 - group["betas"][1] ** steps)
            scales.append(1 / (second.sqrt() + group["eps"]))
        elif "momentum_buffer" in state:
            momentum = state["momentum_buffer"]
            scales.append(1 / momentum.square().mean().sqrt().clamp(min=1e-12))
        else:
            scales.append(torch.ones((), device=weight.device))
    return scales


def _dot(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    return float(sum((a * b).sum() for a, b in zip(first, second, strict=True)))


@dataclass(frozen=True, slots=True)
class Proof:
    """Nats of a reply after each training: with all rows, without the first by gradient, without
    the most similar texts, without random ones.

    before: of the model before the run.
    """

    before: float
    whole: float
    without_first: float
    without_similar: float
    without_random: float


def prove(
    again: Retraining,
    rows: Sequence[TrainedRow],
    influence: Influence,
    target: dict[str, Tensor],
    seed: int,
    tell: Tell,
) -> Proof:
    """Train again without `FIRST` rows, three times."""
    first, similar = (
        np.argsort(-scores, kind="stable")[:FIRST].tolist()
        for scores in (influence.gradient, influence.text)
    )
    others = [number for number in range(len(rows)) if number not in first]
    chance = random.Random(seed).sample(others, min(FIRST, len(others)))
    nats = []
    for number, chosen in enumerate((first, similar, chance)):
        tell("training again", number, 3)
        again.train([rows[one].key for one in chosen])
        nats.append(again.log_probability(target))
    again.restart()
    return Proof(again.log_probability(target), influence.replayed, *nats)


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """What single rows are worth. changes: nats that the reply loses without each of `numbers`.

    correlations: Spearman's, of the changes with each score; None where all values are equal.
    """

    numbers: list[int]
    changes: list[float]
    correlations: dict[str, float | None] = field(default_factory=dict)


def leave_one_out(
    again: Retraining,
    rows: Sequence[TrainedRow],
    influence: Influence,
    target: dict[str, Tensor],
    count: int,
    seed: int,
    tell: Tell,
) -> LeaveOneOut:
    """Train again without one row at a time: `count` random ones, or all."""
    numbers = sorted(random.Random(seed).sample(range(len(rows)), min(count, len(rows))))
    changes = []
    for done, number in enumerate(numbers):
        tell("leaving one out", done, len(numbers))
        again.train([rows[number].key])
        changes.append(influence.replayed - again.log_probability(target))
    scores = {"gradient": influence.gradient, "text": influence.text}
    correlations = {
        name: rank_correlation(changes, of[numbers].tolist()) for name, of in scores.items()
    }
    return LeaveOneOut(numbers, changes, correlations)
