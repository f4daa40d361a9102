"""From logits to the next token.

Invariant: a draw takes exactly one uniform number from the sampler's own generator and walks the
remaining tokens in the order of their ids, so the same seed gives the same text whatever was
generated before, and rounding in the last bits of the logits does not reorder anything.
"""

import ctypes
import secrets
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chatapp.common.parameters import Sampling
from chatapp.engine.kernels import native

# Smaller temperatures are 0 in float32.
_LEAST_TEMPERATURE = torch.finfo(torch.float32).tiny
_MOST_KEPT = 2**31 - 1  # an int of the kernels; no vocabulary has more


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
        self._uniforms = np.empty(0)
        """Numbers that are drawn from the generator and not used yet."""
        self._known = 0
        self._seen = np.empty(0, np.bool_)
        self._following: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)
        self._library, self._room = native.kernels().library, np.empty(0, np.float32)
        self._penalty = np.float32(sampling.repetition_penalty)
        self._struct = native.SamplingStruct(
            top_p=sampling.top_p,
            temperature=sampling.temperature and max(sampling.temperature, _LEAST_TEMPERATURE),
            min_p=sampling.min_p,
            penalty=self._penalty,
            relief=1 / self._penalty,
            top_k=min(sampling.top_k, _MOST_KEPT),
        )

    def normaliser(self, logits: Tensor) -> float:
        """The log of the sum of exp(logits); not finite where one of them is not."""
        if self._library is None or logits.dtype != torch.float32 or not logits.is_contiguous():
            return float(logits.logsumexp(0))
        room = self._room_for(logits)
        return float(self._library.log_sum(logits.data_ptr(), len(logits), room))

    def _room_for(self, logits: Tensor) -> int:
        if len(self._room) != 2 * len(logits):
            self._room = np.empty(2 * len(logits), np.float32)
        return self._room.ctypes.data

    def draw(self, logits: Tensor, ids: Sequence[int]) -> int:
        """Draw the next token after `ids`, which begin with those of the previous call.

        logits: (vocabulary,), not changed.
        """
        options = self._sampling
        logits = self._penalised(logits, ids)
        if options.temperature == 0:
            return int(logits.numpy().argmax())  # torch takes seven times as long
        uniform = float(self._coming(1)[0])
        self._uniforms = self._uniforms[1:]
        if self._library is not None and logits.dtype == torch.float32 and logits.is_contiguous():
            of, place, room = ctypes.byref(self._struct), logits.data_ptr(), self._room_for(logits)
            return int(self._library.draw_token(of, place, len(logits), uniform, room))
        token_ids, probabilities = self._truncated(self._tempered(logits))
        cumulative = probabilities.double().cumsum(0).numpy()
        index = int(cumulative.searchsorted(uniform * cumulative[-1], side="right"))
        index = min(index, len(cumulative) - 1)
        return index if token_ids is None else int(token_ids[index])

    def _coming(self, count: int) -> NDArray[np.float64]:
        """The next uniform numbers, at least so many."""
        more = count - len(self._uniforms)
        if more > 0:
            drawn = torch.rand(more, dtype=torch.float64, generator=self._generator).numpy()
            self._uniforms = np.concatenate((self._uniforms, drawn))
        return self._uniforms

    def begin_natively(
        self, ids: Sequence[int], vocabulary: int, ends: Collection[int], most: int
    ) -> native.SamplingStruct | None:
        """What the kernels draw the tokens after `ids` by, at most `most`, up to one of `ends`.

        It lasts until the next call of this sampler. None for what only `draw` can do.
        """
        options = self._sampling
        changes = options.no_repeat_ngram, options.frequency_penalty, options.presence_penalty
        if any(changes) or len(self._bias):
            return None
        kept = self._ends = (ctypes.c_int * len(ends))(*ends)
        struct = native.SamplingStruct.from_buffer_copy(self._struct)
        struct.ends, struct.end_count = ctypes.addressof(kept), len(ends)
        if options.temperature:
            struct.uniforms = self._coming(most).ctypes.data
        if options.repetition_penalty != 1.0:
            struct.seen = self._see(ids, vocabulary).ctypes.data
            self._known = len(ids)
        return struct

    def end_natively(self, count: int) -> None:
        """So many tokens were drawn."""
        if self._sampling.temperature:
            self._uniforms = self._uniforms[count:]

    def _see(self, ids: Sequence[int], vocabulary: int) -> NDArray[np.bool_]:
        """Which ids of the vocabulary are among `ids`."""
        if not len(self._seen):
            self._seen = np.zeros(vocabulary, np.bool_)
        self._seen[ids[self._known :]] = True
        return self._seen

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
            values, seen = logits.numpy(), self._see(ids, len(logits))  # sooner than by torch
            factors = np.where(values > 0, 1 / self._penalty, self._penalty)
            np.multiply(values, factors, out=values, where=seen)
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
