"""From log-likelihoods to probabilities of labels, in three ways.

Invariant: these functions need only the numbers of a `Likelihoods`, so another rule can decide an
answer again without the model.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

from chatapp.tasks.settings import Scoring

CONTENT_FREE = ("N/A", "", "[MASK]")
"""Inputs without content (Zhao et al. 2021)."""

ByLabel = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """The likelihoods for one input: sums over tokens, in nats, by label.

    direct: log p(label | demonstrations, input). content_free: the same with each of CONTENT_FREE
    as the input; empty if not needed. channel: log p(input | reversed demonstrations, label); empty
    if not needed. tokens: of each choice, and unconditional: log p(choice | the answer's prefix);
    empty for labels.
    """

    direct: ByLabel = field(default_factory=dict)
    content_free: tuple[ByLabel, ...] = ()
    channel: ByLabel = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    unconditional: ByLabel = field(default_factory=dict)


def probabilities(likelihoods: Likelihoods, scoring: Scoring) -> dict[str, float]:
    """The probability of each label, normalized over the labels.

    direct: p(label | input). calibrated: p(label | input) / p(label), where p(label) is the mean
    over the content-free inputs: contextual calibration with W = diag(p)⁻¹ and b = 0 (Zhao et al.
    2021). channel: p(input | label), with equal prior probabilities (Min et al. 2021). per_token:
    the geometric mean of the probabilities of a choice's tokens. unconditional: p(choice | prompt)
    / p(choice | the answer's prefix) (both Brown et al. 2020). Raises ValueError when the required
    numbers are missing.
    """
    needed = {
        "direct": likelihoods.direct,
        "calibrated": likelihoods.direct and likelihoods.content_free,
        "channel": likelihoods.channel,
        "per_token": likelihoods.tokens,
        "unconditional": likelihoods.unconditional,
    }
    if not needed[scoring]:
        raise ValueError(f"there are no log-probabilities for {scoring} scoring")
    if scoring == "channel":
        return softmax(likelihoods.channel)
    sums = likelihoods.direct
    if scoring == "per_token":
        return softmax({choice: sums[choice] / likelihoods.tokens[choice] for choice in sums})
    if scoring == "unconditional":
        return softmax(
            {choice: sums[choice] - likelihoods.unconditional[choice] for choice in sums}
        )
    direct = softmax(sums)
    if scoring == "direct":
        return direct
    free = [softmax(sums) for sums in likelihoods.content_free]
    # In logarithms: a probability can be too small for a float, its logarithm never.
    logs = {
        label: likelihoods.direct[label] - math.log(max(fmean(p[label] for p in free), 1e-300))
        for label in direct
    }
    return softmax(logs)


def softmax(logs: ByLabel) -> dict[str, float]:
    """exp(x) for each label over their sum."""
    highest = max(logs.values())
    weights = {label: math.exp(value - highest) for label, value in logs.items()}
    total = math.fsum(weights.values())
    return {label: weight / total for label, weight in weights.items()}


def best(values: ByLabel) -> str:
    """The label with the highest value, the first of equals."""
    return max(values, key=values.__getitem__)
