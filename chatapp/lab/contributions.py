"""What parts of a model contribute to a token: their direct shares, and what is lost without them.

The residual stream at the last token is a sum: r = E + P + Σ_l (Σ_h z_lh W_O^lh + b_O^l + MLP_l).
With the scale of the final norm held at that of the whole r, the logits are linear in it, so that
each part c has its share of the difference of two logits. With u = W_U[:, t] − W_U[:, t′]:

    LayerNorm   a_c = ((c − mean(c)) ⊙ γ) · u / σ(r),  and one row for β · u
    RMSNorm     a_c = (c ⊙ γ) · u / rms(r)

(Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; 2211.00593). Where a norm
follows attention or MLP, the part is what is added after it, with that norm's scale held as well.

Zero ablation answers what the model says without a part, mean ablation what it says without the
part's information (2404.15255). Heads are changed before their projection. Heads back each other
up, so that the effect of one alone understates it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chatapp.common.userfiles import Progress, no_progress
from chatapp.engine.decoder.interventions import Change, Interventions, Part, switched_off
from chatapp.engine.decoder.parts import LayerNorm, RMSNorm
from chatapp.lab.reruns import (
    Contrast,
    Edit,
    LabError,
    Reading,
    heads_and_mlps,
    last_logits,
    read_again,
)

_ROWS = 64
"""How many rows of logits are computed at once: some 70 MB with a vocabulary of 262,144."""


@dataclass(frozen=True, slots=True)
class Component:
    """A part of the model and its share of a difference of logits.

    name: `embed`, `positions`, `3.5` (layer.head), `4.mlp`, `biases` (of the projections of heads),
    `norm` (the bias of the final norm), or `changes` (what interventions put there). effect: how
    much the difference falls when the part is replaced by zeros everywhere; None where that was
    not measured, or is not a question.
    """

    name: str
    share: float
    effect: float | None = None


@torch.inference_mode()
def shares(reading: Reading, contrast: Contrast) -> list[Component]:
    """Each part's direct share of `contrast` after the last token."""
    decoder = reading.decoder
    names, parts = _parts(reading)
    whole = reading.states[-1][-1]
    normed = normed_parts(decoder.norm, parts, whole)
    if isinstance(decoder.norm, LayerNorm):
        names.append("norm")
        normed = torch.cat([normed, decoder.norm.bias[None]])
    rows = [contrast.of(decoder.uncapped_head(chunk)) for chunk in torch.split(normed, _ROWS)]
    values = torch.cat(rows).tolist()
    return [Component(name, value) for name, value in zip(names, values, strict=True)]


def effects(
    reading: Reading, contrast: Contrast, progress: Progress = no_progress
) -> dict[str, float]:
    """How much `contrast` falls without each head and each MLP: total effects by zero ablation."""
    before = float(contrast.of(reading.logits))
    after = _without_each(
        reading, lambda states: contrast.of(last_logits(reading.decoder, states)), progress
    )
    return {name: before - value for name, value in after.items()}


def _without_each(
    reading: Reading, measure: Callable[[Tensor], Tensor], progress: Progress
) -> dict[str, Any]:
    """What `measure` gives without each head and each MLP alone, by name; see `read_again`."""
    parts = list(heads_and_mlps(reading.decoder))
    rows = read_again(reading, [Edit.without(part) for part in parts], measure, progress)
    return dict(zip(map(str, parts), rows.tolist(), strict=True))


def _parts(reading: Reading) -> tuple[list[str], Tensor]:
    """Names of all that is added to the residual stream at the last token, and (parts, width)."""
    decoder = reading.decoder
    last = reading.states[0][-1]
    names, rows = ["embed"], [last]
    if reading.positions is not None:
        names, rows = ["embed", "positions"], [last - reading.positions[-1], reading.positions[-1]]
    biases = torch.zeros_like(last)
    for layer in range(decoder.architecture.layers):
        by_head, bias = _head_updates(reading, layer)
        biases += bias
        names += [f"{layer}.{head}" for head in range(len(by_head))]
        rows += [*by_head, reading.mlps[layer][-1]]
        names.append(f"{layer}.mlp")
    names.append("biases")
    rows.append(biases)
    parts = torch.stack(rows)
    if reading.changes:
        names.append("changes")
        parts = torch.cat([parts, (reading.states[-1][-1] - parts.sum(0))[None]])
    return names, parts


def _head_updates(reading: Reading, layer: int) -> tuple[Tensor, Tensor]:
    """What each head adds at the last token, (heads, width), and what the bias adds, (width,)."""
    block = reading.decoder.blocks[layer]
    mixed = reading.heads[layer][:, -1]
    heads, size = mixed.shape
    apart = torch.zeros(heads + 1, heads, size, device=mixed.device)
    apart[range(heads), range(heads)] = mixed
    added = block.attention.projection(apart.view(heads + 1, -1))
    bias = added[-1]
    by_head = added[:-1] - bias
    if block.norm_after_1 is not None:
        together = torch.cat([by_head, bias[None]])
        added = normed_parts(block.norm_after_1, together, together.sum(0))
        return added[:-1], added[-1]
    return by_head, bias


def normed_parts(norm: LayerNorm | RMSNorm, parts: Tensor, whole: Tensor) -> Tensor:
    """Parts (parts, width) after a norm with the scale of the whole (width,), without a bias."""
    if isinstance(norm, LayerNorm):
        scale = (whole.var(unbiased=False) + norm.epsilon).rsqrt()
        return (parts - parts.mean(-1, keepdim=True)) * scale * norm.weight
    scale = (whole.square().mean() + norm.epsilon).rsqrt()
    return parts * scale * norm.weight


def runner_up(logits: Tensor, token: int) -> int:
    """The most likely token except one. logits: (vocabulary,)."""
    best: Sequence[int] = logits.topk(2).indices.tolist()
    return best[1] if best[0] == token else best[0]


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
    changes = reading.changes.shifted(-len(reading.start)) + without
    changed = Reading(reading.decoder, reading.ids, reading.start, changes)
    both = _measures(reading.logits, torch.stack([reading.logits, changed.logits]), contrast)
    before, after = both.tolist()
    return _effect(without.words, before, after)


def effects_of_all(
    reading: Reading, contrast: Contrast, progress: Progress = no_progress
) -> list[Effect]:
    """What every head and every MLP does for a token, by zero ablation of each alone."""
    whole = reading.logits
    before = _measures(whole, whole[None], contrast)[0].tolist()
    after = _without_each(
        reading,
        lambda states: _measures(whole, last_logits(reading.decoder, states), contrast),
        progress,
    )
    return [_effect(name, before, values) for name, values in after.items()]


def losses_without(
    reading: Reading, progress: Progress = no_progress
) -> tuple[float, dict[str, float]]:
    """The mean loss of a text's tokens in nats, and how it rises without each head and each MLP.

    Raises LabError for a text of fewer than two tokens.
    """
    if len(reading.ids) < 2:
        raise LabError("the loss of a text needs at least two tokens")
    before = float(_loss(reading, reading.states[-1][None])[0])
    after = _without_each(reading, lambda states: _loss(reading, states), progress)
    return before, {name: loss - before for name, loss in after.items()}


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


def _effect(name: str, before: Sequence[float], after: Sequence[float]) -> Effect:
    """before, after: as `_measures` has them."""
    logprob, difference, kl = after
    return Effect(name, logprob, logprob - before[0], difference, difference - before[1], kl)


def _measures(before: Tensor, after: Tensor, contrast: Contrast) -> Tensor:
    """Log-probability of the token, difference of the logits, KL: (rows, 3). after: (rows, V)."""
    whole, logprobs = before.log_softmax(-1), after.log_softmax(-1)
    kl = (whole.exp() * (whole - logprobs)).sum(-1).clamp_min(0)
    return torch.stack([logprobs[:, contrast.token], contrast.of(after), kl], -1)
