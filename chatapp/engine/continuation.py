"""The state of one reply: its tokens so far, what may come next, and when it ends.

Invariant: the rules of a reply are the same whether it is computed alone or in a batch, and another
sequence affects it only through the logits.
"""

import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from chatapp.engine.constraint.matching import Matcher
from chatapp.engine.constraint.vocabulary import Vocabulary
from chatapp.engine.errors import first_line
from chatapp.engine.events import Alternative, Event, Finished, FinishReason, Token
from chatapp.engine.model import Request, Tokenizer
from chatapp.engine.sampling import Sampler
from chatapp.engine.stopping import RepetitionFilter, StopFilter


class Cancelled(Exception):
    """The caller's cancel event was set during a computation."""


FAILURES = (Cancelled, RuntimeError, MemoryError, OSError)
"""Exceptions of a computation that end its reply."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token drawn from the logits before it."""

    id: int
    logprob: float
    alternatives: tuple[Alternative, ...]
    forced: bool = False
    forbidden: float = 0.0


class Continuation:
    """What a request has come to so far.

    piece: a token's own text. ends: token ids that end a reply, beside those the request names.
    context: the model's window.
    sequence: the tokens of prompt and reply. interventions: see `Request`. reused: tokens of the
    prompt that came from a cache, for whoever computes it to say. has_ended: after its `Finished`,
    nothing comes.
    vocabulary: for a request with a constraint.
    Raises ValueError for a stop string without a character, ConstraintError.
    """

    def __init__(
        self,
        request: Request,
        *,
        tokenizer: Tokenizer,
        piece: Callable[[int], str],
        ends: Collection[int],
        context: int,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self.sequence = list(request.ids)
        self.interventions = request.interventions
        self.has_ended = False
        self._prompt_tokens = len(request.ids)
        self._forced = request.forced
        self._undrawn = self._prompt_tokens + len(request.forced)
        self._limit = self._undrawn + request.sampling.max_tokens
        self._context = context
        self._cancel = request.cancel or threading.Event()
        self._checked = request.checked
        self._top = request.top
        special = tokenizer.special
        self._ends = {*ends, *(special[text] for text in request.stop if text in special)}
        self._sampler = Sampler(request.sampling)
        self._piece = piece
        self._text = tokenizer.stream()
        self._matcher: Matcher | None = None
        stops, repeats = request.stop, request.sampling.max_repeats
        if request.constraint is not None and vocabulary is not None:
            mark = special.get(request.constraint.after)
            self._matcher = Matcher(request.constraint, vocabulary, self._ends, mark)
            if not request.constraint.is_optional:
                stops, repeats = (), 0
        self._forced_tokens, self._constrained_steps, self._forbidden = 0, 0, 0.0
        self._stops = StopFilter([text for text in stops if text not in special])
        self._repeats = RepetitionFilter(
            partial(tokenizer.decode, [*request.ids, *request.forced]), repeats
        )
        self.reused = 0
        self._started = time.perf_counter()
        self._time_to_first_token = 0.0

    @property
    def is_unbegun(self) -> bool:
        """Whether no token has been drawn."""
        return len(self.sequence) == self._undrawn

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller has cancelled it."""
        return self._cancel.is_set()

    def raise_if_cancelled(self) -> None:
        """Raises Cancelled when the caller has cancelled it."""
        if self.is_cancelled:
            raise Cancelled

    def begin(self) -> list[Event]:
        """The events of the forced tokens, before any other is drawn."""
        events: list[Event] = []
        for id in self._forced:
            if id in self._ends:
                return [*events, self._end("stop", end_id=id)]
            self.sequence.append(id)
            text = self._text.push(id)
            if self._matcher is not None:
                self._matcher.take(id, text)
            events.append(Token(id, text, self._piece(id), math.nan))
        if self._matcher is not None and self._matcher.is_over:
            return [*events, self._end("stop")]
        return events if len(self.sequence) < self._context else [*events, self._end("context")]

    def draw(self, logits: Tensor) -> Drawn:
        """Draw the next token. logits: (vocabulary,), after the current sequence.

        Raises RuntimeError for logits that are NaN, and for a constraint that takes too much work.
        """
        normaliser = float(logits.logsumexp(0))
        if normaliser != normaliser:
            raise RuntimeError("its weights produce logits that are not finite")
        id, is_forced, forbidden = self._choose(logits, normaliser)
        alternatives = []
        if self._top:
            values, ids = logits.topk(min(self._top, len(logits)))
            for other, value in zip(ids.tolist(), values.tolist(), strict=True):
                alternatives.append(Alternative(other, self._piece(other), value - normaliser))
        logprob = float(logits[id]) - normaliser
        return Drawn(id, logprob, tuple(alternatives), is_forced, forbidden)

    def _choose(self, logits: Tensor, normaliser: float) -> tuple[int, bool, float]:
        """The next token, whether it was forced, and the probability that was forbidden."""
        if self._matcher is None or not self._matcher.is_on:
            return self._sampler.draw(logits, self.sequence), False, 0.0
        allowed = self._matcher.allowed()
        mask = torch.from_numpy(allowed.mask)
        left = logits.where(mask, -torch.inf)
        within = math.exp(min(0.0, float(left.logsumexp(0)) - normaliser))
        is_forced = allowed.only is not None
        id = self._sampler.draw(left, self.sequence) if allowed.only is None else allowed.only
        self._constrained_steps += 1
        self._forbidden += 1 - within
        return id, is_forced, 1 - within

    @property
    def ahead(self) -> Sequence[int]:
        """The tokens that the constraint will force next; often none."""
        return () if self._matcher is None else self._matcher.ahead()

    def add(self, drawn: Drawn) -> list[Event]:
        """The events of a drawn token: the token, the end, or both."""
        if self.is_unbegun:
            self._time_to_first_token = time.perf_counter() - self._started
        if drawn.id in self._ends:
            return [self._end("stop", end_id=drawn.id, end_logprob=drawn.logprob)]
        self.sequence.append(drawn.id)
        text = self._text.push(drawn.id)
        if self._matcher is not None:
            self._matcher.take(drawn.id, text)
        self._forced_tokens += drawn.forced
        visible = self._repeats.push(drawn.id, self._stops.push(text))
        token = Token(
            drawn.id,
            visible,
            self._piece(drawn.id),
            drawn.logprob,
            drawn.alternatives,
            forced=drawn.forced,
            forbidden=drawn.forbidden,
        )
        reason = self._bound()
        return [token] if reason is None else [token, self._end(reason)]

    def fail(self, failure: BaseException) -> Finished:
        """The end, by one of `FAILURES`."""
        if isinstance(failure, Cancelled):
            return self._end("cancelled")
        return self._end("error", f"the model failed: {first_line(failure)}")

    def _bound(self) -> FinishReason | None:
        """Why the reply must end now, or None."""
        if self._repeats.hit:
            return "repetition"
        if self._stops.hit or (self._matcher is not None and self._matcher.is_over):
            return "stop"
        if len(self.sequence) == self._limit:
            return "length"
        return "context" if len(self.sequence) == self._context else None

    def _end(
        self,
        reason: FinishReason,
        message: str = "",
        end_id: int | None = None,
        end_logprob: float | None = None,
    ) -> Finished:
        self.has_ended = True
        last = self._text.flush()
        rest = self._repeats.flush(self._stops.push(last) + self._stops.flush())
        tokens = len(self.sequence) - self._prompt_tokens
        valid = None
        if self._matcher is not None:
            valid, why_not = self._matcher.verdict(reason, last, tokens, checked=self._checked)
            message = message or why_not
        return Finished(
            "stop" if self._stops.hit else reason,
            text=rest,
            prompt_tokens=self._prompt_tokens,
            reused_tokens=self.reused,
            reply_tokens=tokens,
            time_to_first_token=self._time_to_first_token,
            seconds=time.perf_counter() - self._started,
            message=message,
            end_id=end_id,
            end_logprob=end_logprob,
            valid=valid,
            forced_tokens=self._forced_tokens,
            forbidden_mass=self._forbidden / max(1, self._constrained_steps),
        )
