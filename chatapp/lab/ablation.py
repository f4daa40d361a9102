"""What a model says without some of its parts.

Zero ablation answers what the model says without a part, mean ablation what it says without the
part's information (2404.15255). Heads are changed before their projection. Heads back each other
up, so that the effect of one alone understates it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chatapp.common.progress import Progress, no_progress
from chatapp.engine.decoder.interventions import Change, Interventions, Part, switched_off
from chatapp.lab.reruns import (
    Contrast,
    Edit,
    LabError,
    Reading,
    heads_and_mlps,
    last_logits,
    read_again,
)


@dataclass(frozen=True, slots=True)
class Effect:
    """What the model says without a part.

    log_probability: of the token, in nats, and change, how it differs from that of the whole model.
    difference: of the logits, and its change. kl: KL(whole ‖ without), in nats.
    """

    name: str
    log_probability: float
    change: float
    difference: float
    difference_change: float
    kl: float


def means(reading: Reading, parts: Sequence[Part]) -> Interventions:
    """Parts replaced by their means over the tokens of the text that was read."""
    changes = []
    for part in parts:
        for off in switched_off([part]).changes:
            values = _values(reading, off)
            changes.append(
                Change(off.name, off.point, tuple(values.tolist()), component=off.component)
            )
    return Interventions(tuple(changes))


def _values(reading: Reading, change: Change) -> Tensor:
    """The mean over the tokens at a point, (size,), or (1,) of one component."""
    seen: dict[str, Tensor] = {}
    reading.decoder.hidden(
        [[*reading.start, *reading.ids]],
        observe=lambda point, value: seen.setdefault(point, value),
        changes=reading.changes,
    )
    mean = seen[change.point][0].mean(0)
    return mean if change.component is None else mean[change.component][None]


def effect_of(reading: Reading, contrast: Contrast, without: Interventions) -> Effect:
    """What changes when several parts are off together."""
    changed = Reading(reading.decoder, reading.ids, reading.start, _before_start(reading) + without)
    return _effect(without.words, reading.logits, changed.logits, contrast)


def _before_start(reading: Reading) -> Interventions:
    """The changes of a reading, with positions as the text has them."""
    return reading.changes.shifted(-len(reading.start))


def effects_of_all(
    reading: Reading, contrast: Contrast, progress: Progress = no_progress
) -> list[Effect]:
    """What every head and every MLP does for a token, by zero ablation of each alone."""
    parts = list(heads_and_mlps(reading.decoder))
    rows = read_again(
        reading,
        [Edit.without(part) for part in parts],
        lambda states: _measures(reading.logits, last_logits(reading.decoder, states), contrast),
        progress,
    )
    before = _measures(reading.logits, reading.logits[None], contrast)[0].tolist()
    return [
        Effect(str(part), logprob, logprob - before[0], difference, difference - before[1], kl)
        for part, (logprob, difference, kl) in zip(parts, rows.tolist(), strict=True)
    ]


def losses_without(
    reading: Reading, progress: Progress = no_progress
) -> tuple[float, dict[str, float]]:
    """The mean loss of a text's tokens in nats, and how it rises without each head and each MLP.

    Raises LabError for a text of fewer than two tokens.
    """
    if len(reading.ids) < 2:
        raise LabError("the loss of a text needs at least two tokens")
    parts = list(heads_and_mlps(reading.decoder))
    before = float(_loss(reading, reading.states[-1][None])[0])
    after = read_again(
        reading,
        [Edit.without(part) for part in parts],
        lambda states: _loss(reading, states),
        progress,
    )
    return before, {
        str(part): loss - before for part, loss in zip(parts, after.tolist(), strict=True)
    }


def _loss(reading: Reading, states: Tensor) -> Tensor:
    """The mean loss (rows,) of the text's tokens from the second on.

    states: (rows, tokens, width).
    """
    decoder, first = reading.decoder, max(1, len(reading.start))
    ids = torch.tensor([*reading.start, *reading.ids])[first:]
    losses = []
    for row in states:
        logits = decoder.head(decoder.normed(row[first - 1 : -1])).cpu()
        losses.append(torch.nn.functional.cross_entropy(logits, ids))
    return torch.stack(losses)


def _effect(name: str, before: Tensor, after: Tensor, contrast: Contrast) -> Effect:
    rows = _measures(before, torch.stack([before, after]), contrast).tolist()
    (logprob, difference, _), (changed, other, kl) = rows
    return Effect(name, changed, changed - logprob, other, other - difference, kl)


def _measures(before: Tensor, after: Tensor, contrast: Contrast) -> Tensor:
    """Log-probability of the token, difference of the logits, KL: (rows, 3). after: (rows, V)."""
    whole, logprobs = before.log_softmax(-1), after.log_softmax(-1)
    kl = (whole.exp() * (whole - logprobs)).sum(-1).clamp_min(0)
    return torch.stack([logprobs[:, contrast.token], contrast.of(after), kl], -1)
