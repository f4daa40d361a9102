"""Summaries of distributions over the next token, and a reply drawn step by step."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from chatapp.common.shading import percent
from chatapp.engine.constraint.matching import Allowed, Matcher
from chatapp.engine.model import Sampling
from chatapp.engine.sampling import Sampler


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible next token, under the model's plain softmax.

    text: the token's own, for display. rank: 1 is the most likely; None if unknown.
    """

    id: int
    text: str
    probability: float
    rank: int | None


@dataclass(frozen=True, slots=True)
class Prediction:
    """The summary of a distribution over the next token.

    entropy: in bits; None if unknown. candidates: the most likely, best first. actual: the token
    that followed; None after the last one.
    """

    entropy: float | None
    candidates: tuple[Candidate, ...]
    actual: Candidate | None


@dataclass(frozen=True, slots=True)
class Limit:
    """What a constraint did at a token. forced: whether it left no other choice. forbidden: the
    probability that it removed, of 1.
    """

    forced: bool
    forbidden: float

    @property
    def words(self) -> str:
        """In words."""
        if self.forced:
            return "the constraint leaves only one token"
        return f"the constraint removes {percent(self.forbidden).strip()} of the probability"


@dataclass(frozen=True, slots=True)
class Cut:
    """The next token's distribution before and after a constraint, temperature, penalties and cuts.

    before: of the plain softmax; the likeliest tokens that a constraint allows come first. drawn:
    the new probability of each of its candidates, 0 if it was cut off. entropy: in bits, of the
    rest. kept: the number of remaining tokens. limit: what the constraint did; None without one.
    """

    before: Prediction
    drawn: tuple[float, ...]
    entropy: float
    kept: int
    limit: Limit | None = None


@torch.inference_mode()
def predictions(
    logits: Tensor, actual: Sequence[int | None], *, top: int, piece: Callable[[int], str]
) -> list[Prediction]:
    """Summarize distributions.

    logits: (rows, vocabulary). actual: the token after each row, if known.
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
    allowed: Allowed | None = None,
) -> Cut:
    """The distribution after `ids`, before and after the sampler's changes.

    logits: (vocabulary,). allowed: by a constraint; None for every token.
    """
    (before,) = predictions(logits[None], [None], top=top, piece=piece)
    after = sampler.distribution(_within(logits, allowed), ids)
    if allowed is not None:  # what is left may be none of the likeliest
        left = after.topk(min(top // 2, int((after > 0).sum()))).indices.tolist()
        rows = predictions(logits.expand(len(left), -1), left, top=1, piece=piece)
        others = (candidate for candidate in before.candidates if candidate.id not in left)
        candidates = [row.actual for row in rows if row.actual is not None]
        before = replace(before, candidates=(*candidates, *others)[:top])
    drawn = tuple(float(after[candidate.id]) for candidate in before.candidates)
    entropy = float(torch.special.entr(after).sum()) / np.log(2)
    limit = None if allowed is None else limit_of(allowed, logits)
    return Cut(before, drawn, entropy, int((after > 0).sum()), limit)


def limit_of(allowed: Allowed, logits: Tensor) -> Limit:
    """What a constraint does to a distribution. logits: (vocabulary,)."""
    shares = logits.float().softmax(0).numpy()
    return Limit(allowed.only is not None, float(shares[~allowed.mask].sum()))


def _within(logits: Tensor, allowed: Allowed | None) -> Tensor:
    """Logits with -inf for what may not come."""
    if allowed is None:
        return logits
    mask = torch.from_numpy(allowed.mask)
    if allowed.only is not None:
        mask = torch.arange(len(mask)) == allowed.only
    return logits.where(mask, -torch.inf)


class Stepper:
    """A reply that grows token by token.

    taken: the tokens so far, drawn or chosen, with the model's predictions. sampling: how the next
    token is drawn. follow: the state of the reply's constraint after these tokens of it; None
    without one.
    """

    def __init__(
        self,
        logits: Callable[[Sequence[int]], Tensor],
        piece: Callable[[int], str],
        ids: Sequence[int],
        sampling: Sampling,
        context: int,
        end_ids: Collection[int],
        follow: Callable[[Sequence[int]], Matcher | None] = lambda taken: None,
    ) -> None:
        """Raises ConstraintError as `follow` does."""
        self.taken: list[Candidate] = []
        self._ids = list(ids)
        self._context = context
        self._end_ids = end_ids
        self._compute = logits
        self._piece = piece
        self._known: Tensor | None = None
        self._follow = follow
        self._matcher = follow(())
        self._prompt = len(self._ids)
        self.draw_by(sampling)

    def draw_by(self, sampling: Sampling) -> None:
        """Draw the next tokens with other sampling parameters."""
        self.sampling = sampling
        self._sampler = Sampler(sampling, self._prompt)

    @property
    def is_over(self) -> bool:
        """Whether the reply has ended, or the window is full."""
        if self.taken and self.taken[-1].id in self._end_ids:
            return True
        is_complete = self._matcher is not None and self._matcher.is_over
        return is_complete or len(self._ids) >= self._context

    def look(self, top: int = 10) -> Cut:
        """The distribution of the next token."""
        logits, allowed = self._logits(), self._allowed()
        return cut(logits, self._ids, self._sampler, top=top, piece=self._piece, allowed=allowed)

    def draw(self) -> int:
        """Draw the next token and add it; returns its id. Raises ValueError when it is over."""
        self._check()
        allowed = self._allowed()
        if allowed is None or allowed.only is None:
            id = self._sampler.draw(_within(self._logits(), allowed), self._ids)
        else:
            id = allowed.only
        self._add(id)
        return id

    def choose(self, id: int) -> None:
        """Add a token that was not drawn.

        Raises ValueError when it is over, for an id that is not in the vocabulary, and for one that
        the constraint does not allow.
        """
        self._check()
        vocabulary, allowed = len(self._logits()), self._allowed()
        if not 0 <= id < vocabulary:
            raise ValueError(f"token id {id} is not in the vocabulary of {vocabulary}")
        if allowed is not None and not allowed.mask[id]:
            raise ValueError("the reply's constraint does not allow this token here")
        self._add(id)
        self._sampler = Sampler(self.sampling, self._prompt)

    def back(self) -> bool:
        """Take the last token back; False when there is none."""
        if not self.taken:
            return False
        del self._ids[-1], self.taken[-1]
        self._known = None
        self._matcher = self._follow([candidate.id for candidate in self.taken])
        self._sampler = Sampler(self.sampling, self._prompt)
        return True

    def _check(self) -> None:
        if self.is_over:
            raise ValueError("the reply has ended, or the model's window is full")

    def _add(self, id: int) -> None:
        (seen,) = predictions(self._logits()[None], [id], top=1, piece=self._piece)
        assert seen.actual is not None
        self.taken.append(seen.actual)
        self._ids.append(id)
        self._known = None
        if id not in self._end_ids:
            self._matcher = self._follow([candidate.id for candidate in self.taken])

    def _allowed(self) -> Allowed | None:
        """What the constraint allows next; None for every token."""
        if self._matcher is None or not self._matcher.is_on:
            return None
        return self._matcher.allowed()

    def _logits(self) -> Tensor:
        if self._known is None:
            self._known = self._compute(self._ids)
        return self._known
