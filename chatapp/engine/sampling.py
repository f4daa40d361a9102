"""From logits to the next token.

Invariant: a draw takes exactly one uniform number from the sampler's own generator and walks the
remaining tokens in the order of their ids, so the same seed gives the same text whatever was
generated before, and rounding in the last bits of the logits does not reorder anything.
"""

import secrets
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from chatapp.common.parameters import Sampling

# Smaller temperatures are 0 in float32.
_LEAST_TEMPERATURE = torch.finfo(torch.float32).tiny


class Sampler:
    """Draws the tokens of one reply.

    prompt: the tokens before it, which the penalties of frequency and presence do not count. bias:
    added to the logits of the ids that it names.
    """

    def __init__(
        self, sampling: Sampling, prompt: int = 0, bias: Mapping[int, float] | None = None
    ) -> None:
        self._sampling, self._prompt = sampling, prompt
        self._counts: Counter[int] = Counter()
        self._biased = torch.tensor(list(bias or ()), dtype=torch.long)
        self._bias = torch.tensor(list((bias or {}).values()), dtype=torch.float32)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        self._generator = torch.Generator().manual_seed(seed)
        self._known = 0
        self._seen: set[int] = set()
        self._seen_ids = np.empty(0, np.int64)
        self._following: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)

    def draw(self, logits: Tensor, ids: Sequence[int]) -> int:
        """Draw the next token after `ids`, which begin with those of the previous call.

        logits: (vocabulary,), not changed.
        """
        options = self._sampling
        logits = self._penalised(logits, ids)
        if options.temperature == 0:
            return int(logits.numpy().argmax())  # torch takes seven times as long
        token_ids, probabilities = self._truncated(self._tempered(logits))
        uniform = float(torch.rand((), dtype=torch.float64, generator=self._generator))
        cumulative = probabilities.double().cumsum(0).numpy()
        index = int(cumulative.searchsorted(uniform * cumulative[-1], side="right"))
        index = min(index, len(cumulative) - 1)
        return index if token_ids is None else int(token_ids[index])

    def distribution(self, logits: Tensor, ids: Sequence[int]) -> Tensor:
        """The probability with which `draw` gives each token after `ids`:
        (vocabulary,), sums to 1."""
        logits = self._penalised(logits, ids)
        probabilities = torch.zeros_like(logits)
        if self._sampling.temperature == 0:
            probabilities[logits.argmax()] = 1.0
            return probabilities
        token_ids, weights = self._truncated(self._tempered(logits))
        probabilities[slice(None) if token_ids is None else token_ids] = weights / weights.sum()
        return probabilities

    def _tempered(self, logits: Tensor) -> Tensor:
        """Logits over the temperature, the largest one at 0."""
        # Relative to the largest logit, a tiny temperature makes all others impossible.
        return (logits - logits.max()) / max(self._sampling.temperature, _LEAST_TEMPERATURE)

    def _penalised(self, logits: Tensor, ids: Sequence[int]) -> Tensor:
        """Logits after the bias, the penalties and the ban of repeated n-grams."""
        options = self._sampling
        n = options.no_repeat_ngram
        frequency, presence = options.frequency_penalty, options.presence_penalty
        counts = bool(frequency or presence)
        if not (options.repetition_penalty != 1.0 or n or counts or len(self._bias)):
            return logits
        logits = logits.clone()
        logits[self._biased] += self._bias
        if options.repetition_penalty != 1.0:
            fresh = set(ids[self._known :]) - self._seen
            if fresh:
                self._seen |= fresh
                self._seen_ids = np.append(self._seen_ids, list(fresh))
            values = logits.numpy()[self._seen_ids]  # torch takes ten times as long
            penalty = np.float32(options.repetition_penalty)
            values = np.where(values > 0, values / penalty, values * penalty)
            logits.numpy()[self._seen_ids] = values
        if counts:
            self._counts.update(ids[max(self._known, self._prompt) :])
            drawn = torch.tensor(list(self._counts), dtype=torch.long)
            times = torch.tensor(list(self._counts.values()), dtype=torch.float32)
            logits[drawn] -= times * frequency + presence
        if n > 0:
            for end in range(max(self._known, n - 1), len(ids)):
                self._following[tuple(ids[end - n + 1 : end])].add(ids[end])
            banned = self._following.get(tuple(ids[len(ids) - n + 1 :]), set())
            before = logits[list(banned)]
            logits[list(banned)] = -torch.inf
            if logits.max() == -torch.inf:  # repeating is better than failing
                logits[list(banned)] = before
        self._known = len(ids)
        return logits

    def _truncated(self, logits: Tensor) -> tuple[Tensor | None, Tensor]:
        """The tokens after top-k, top-p and min-p: ids in rising order, and their weights.

        The ids are None when they are the whole vocabulary. Top-p uses the probabilities after
        top-k, as in transformers.
        """
        options, size = self._sampling, len(logits)
        weights, token_ids = logits.exp(), None
        top_k = min(options.top_k, size) or size
        if top_k < size:
            token_ids = logits.topk(top_k).indices.sort().values
            weights = weights[token_ids]
        if options.top_p < 1.0:
            nucleus = _nucleus(weights, options.top_p)
            token_ids, weights = (
                nucleus if token_ids is None else token_ids[nucleus],
                weights[nucleus],
            )
        if options.min_p:
            # The largest weight is 1, so min_p is the bound itself.
            weights = weights.where(weights >= options.min_p, 0.0)
        return token_ids, weights


def _nucleus(weights: Tensor, share: float) -> Tensor:
    """The indices, rising, of the fewest weights with this share of their sum (Holtzman et al.
    2020). Of equal ones, the first.
    """
    values, total = weights.numpy(), float(weights.sum())
    # The smaller ones have less than 1 - share of the sum together; of 49,152 that a model gives,
    # sorting the others takes an eighth of the time.
    likely = np.flatnonzero(values > (1 - share) / 2 * total / len(values))
    values = values[likely]
    falling = np.sort(values)[::-1]
    # The mass above a token: the first one always stays.
    above = falling.cumsum(dtype=np.float64) - falling
    count = int((above < share * total).sum())
    least = falling[count - 1]
    kept = values > least
    kept[np.flatnonzero(values == least)[: count - int(kept.sum())]] = True
    return torch.from_numpy(likely[kept])
