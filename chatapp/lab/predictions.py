"""Distributions over the next token, summed up for people to read.

Keep: probabilities are those of the plain softmax of the logits, entropies are in bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chatapp.engine.sampling import Sampler


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that may come next, under the model's plain softmax.

    text: the token's own, for display. rank: 1 is the likeliest; None where it is not known.
    """

    id: int
    text: str
    probability: float
    rank: int | None


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a distribution over the next token amounts to.

    entropy: in bits; None where it is not known. candidates: the likeliest, best first. actual:
    the token that did come; None after the last one.
    """

    entropy: float | None
    candidates: tuple[Candidate, ...]
    actual: Candidate | None


@dataclass(frozen=True, slots=True)
class Cut:
    """The next token's distribution before and after temperature, penalties and cuts.

    before: of the plain softmax. drawn: what each of its candidates' probability has become,
    0 where it was cut off. entropy: in bits, of what is left. kept: how many tokens are left.
    """

    before: Prediction
    drawn: tuple[float, ...]
    entropy: float
    kept: int


@torch.inference_mode()
def predictions(
    logits: Tensor, actual: Sequence[int | None], *, top: int, piece: Callable[[int], str]
) -> list[Prediction]:
    """Sum up distributions.

    logits: (rows, vocabulary). actual: what did come after each row, if that is known.
    """
    logprobs = logits.float().log_softmax(1)
    # A probability of 0 has a logarithm of -inf, and adds nothing.
    entropies = torch.special.entr(logprobs.exp()).sum(1) / np.log(2)
    values, ids = logprobs.topk(min(top, logprobs.shape[1]))
    rows = []
    for row, id in enumerate(actual):
        pairs = zip(ids[row].tolist(), values[row].exp().tolist(), strict=True)
        best = (Candidate(i, piece(i), p, rank) for rank, (i, p) in enumerate(pairs, start=1))
        came = None
        if id is not None:
            logprob = logprobs[row, id]
            rank = 1 + int((logprobs[row] > logprob).sum())
            came = Candidate(id, piece(id), float(logprob.exp()), rank)
        rows.append(Prediction(float(entropies[row]), tuple(best), came))
    return rows


@torch.inference_mode()
def cut(
    logits: Tensor,
    ids: Sequence[int],
    sampler: Sampler,
    *,
    top: int,
    piece: Callable[[int], str],
) -> Cut:
    """The distribution after `ids`, before and after what the sampler does to it.

    logits: (vocabulary,).
    """
    (before,) = predictions(logits[None], [None], top=top, piece=piece)
    after = sampler.distribution(logits, ids)
    drawn = tuple(float(after[candidate.id]) for candidate in before.candidates)
    entropy = float(torch.special.entr(after).sum()) / np.log(2)
    return Cut(before, drawn, entropy, int((after > 0).sum()))
