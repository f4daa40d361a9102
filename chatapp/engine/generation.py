"""How a reply is written: the state of one reply, and the loop of every local model.

Invariants: the rules of a reply are the same whether it is computed alone or in a batch, and
another sequence affects it only through the logits. A generation holds the model's lock only while
it computes tokens, never while its consumer looks at one, so neither a forgotten generator nor a
second one can block or disturb another. Each computation starts from the full sequence; the cache
makes it cheap. Where nothing watches, one gives several tokens, which wait in the reply.
"""

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chatapp.engine.constraint.matching import Matcher
from chatapp.engine.constraint.token_bytes import Vocabulary
from chatapp.engine.decoder.interventions import UNCHANGED, Interventions, check_changeable
from chatapp.engine.errors import Cancelled, first_line
from chatapp.engine.events import Alternative, Event, Finished, FinishReason, Token
from chatapp.engine.files.model_files import ModelFiles, read_generation_config
from chatapp.engine.kernels.machine import ComputeLock
from chatapp.engine.kernels.native import SamplingStruct
from chatapp.engine.kernels.native_layers import Written
from chatapp.engine.model import (
    NO_TOKEN,
    ContextOverflow,
    Generate,
    PieceTokenizer,
    Request,
    Tokenizer,
    one_after_another,
)
from chatapp.engine.sampling import Sampler
from chatapp.engine.stopping import RepetitionFilter, StopFilter

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
    sequence: the tokens of prompt and reply. waiting: tokens that are drawn after it, and not added
    yet. interventions: see `Request`. reused: tokens of the
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
        self.waiting: deque[Drawn] = deque()
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
        special, self._end_id = tokenizer.special, tokenizer.end_id
        self._ends = {*ends, *(special[text] for text in request.stop if text in special)}
        self._sampler = Sampler(request.sampling, self._prompt_tokens, request.bias)
        self._piece = piece
        self._text = tokenizer.stream()
        self._matcher: Matcher | None = None
        stops, repeats, is_json = request.stop, request.sampling.max_repeats, False
        if request.constraint is not None and vocabulary is not None:
            mark = special.get(request.constraint.after)
            ends = {*self._ends, tokenizer.end_id}
            self._matcher = Matcher(request.constraint, vocabulary, ends, mark)
            if not request.constraint.is_optional:
                is_json = request.constraint.kind == "schema"
                stops, repeats = (), repeats * is_json
        self._forced_tokens, self._constrained_steps, self._forbidden = 0, 0, 0.0
        self._closings, self._is_closed_early = (True, True), False
        self._stops = StopFilter([text for text in stops if text not in special])
        self._repeats = RepetitionFilter(
            partial(tokenizer.decode, [*request.ids, *request.forced]), repeats, is_json=is_json
        )
        self.reused = 0
        self._started = time.perf_counter()
        self._time_to_first_token = 0.0
        if self._matcher is not None and not request.forced:
            self._matcher.check_room(min(self._limit, context) - self._prompt_tokens)

    @property
    def is_unbegun(self) -> bool:
        """Whether no token has been drawn."""
        return len(self.sequence) == self._undrawn

    def begin_natively(self, vocabulary: int, most: int) -> SamplingStruct | None:
        """What the kernels draw its next tokens by, at most `most`, which fit into the reply; None
        where each has to be looked at, or its logits are changed, or it is cancelled.
        """
        is_watched = self._matcher is not None or self._top or self.interventions
        if self.is_unbegun or self.has_ended or self.is_cancelled or is_watched:
            return None
        return self._sampler.begin_natively(self.sequence, vocabulary, self._ends, most)

    def end_natively(self, written: Written) -> None:
        """Keep what the kernels have drawn since `begin_natively`."""
        self._sampler.end_natively(len(written))
        self.waiting.extend(Drawn(id, logprob, ()) for id, logprob in written)

    @property
    def room(self) -> int:
        """How many tokens can still be drawn."""
        return min(self._limit, self._context) - len(self.sequence)

    @property
    def longest(self) -> int:
        """The most tokens of prompt and reply."""
        return self._limit

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
            if id in self._ends or id == NO_TOKEN:
                return [*events, self._end("stop", end_id=None if id == NO_TOKEN else id)]
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

        Raises RuntimeError for logits that are NaN or infinite, and for a constraint that takes too
        much work.
        """
        normaliser = self._sampler.normaliser(logits)
        if not math.isfinite(normaliser):
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
            self._closings = True, True
            return self._sampler.draw(logits, self.sequence), False, 0.0
        allowed = self._matcher.allowed()
        self._closings = allowed.may_close, allowed.may_end
        mask = torch.from_numpy(allowed.mask)
        left = logits.where(mask, -torch.inf)
        within = math.exp(min(0.0, float(left.logsumexp(0)) - normaliser))
        is_forced = allowed.only is not None
        id = self._sampler.draw(left, self.sequence) if allowed.only is None else allowed.only
        if not is_forced and id not in self._ends:
            wanted, id = id, self._matcher.in_time(id, self.room)
            is_forced = id != wanted
            self._is_closed_early |= is_forced
            within = within if id == wanted else math.exp(float(logits[id]) - normaliser)
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
        is_limited = self._matcher is not None and self._matcher.is_on
        if drawn.id in self._ends or (is_limited and drawn.id == self._end_id):
            return [self._end("stop", end_id=drawn.id, end_logprob=drawn.logprob)]
        self.sequence.append(drawn.id)
        text = self._text.push(drawn.id)
        if self._matcher is not None:
            self._matcher.take(drawn.id, text)
        self._forced_tokens += drawn.forced
        visible = self._repeats.push(drawn.id, self._stops.push(text), *self._closings)
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
        if reason == "stop" and self._is_closed_early:
            reason = "length"
        last = self._text.flush()
        rest = self._repeats.flush(self._stops.push(last) + self._stops.flush())
        if self._matcher is not None and reason == "repetition":
            last = rest = "".join(map(self._text.push, self._matcher.close(self._repeats.dropped)))
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


CancelCheck = Callable[[], None]
"""Called within a computation; raises Cancelled when the caller has cancelled it."""


class LocalGenerator(ABC):
    """A `LanguageModel` whose logits are computed here.

    vocabulary: the number of logits. end_ids: any of them ends a reply. piece: a token's own text,
    for display. lock: held while the model computes.
    """

    start: Sequence[int] = ()
    takes_messages = False
    takes_interventions = False
    """Whether parts of it can be switched off."""

    def __init__(
        self,
        *,
        name: str,
        files: ModelFiles | None,
        context: int,
        vocabulary: int,
        layers: int,
        tokenizer: PieceTokenizer,
    ) -> None:
        self.name = name
        self.files = files
        self.context = context
        self.vocabulary = vocabulary
        self.layers = layers
        self.tokenizer: Tokenizer = tokenizer
        self.end_ids = set(read_generation_config(files).ends)
        self.end_ids |= {tokenizer.end_id} if tokenizer.names_end else set()
        self.piece = tokenizer.piece
        self.lock = ComputeLock()

    @cached_property
    def vocab_bytes(self) -> Vocabulary:
        """Its tokens as bytes. Raises ConstraintError for a tokenizer that has none."""
        return Vocabulary(self.name, self.tokenizer, self.vocabulary)

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of the model. Its methods return tensors on the CPU."""

    @property
    @abstractmethod
    def precision(self) -> str:
        """See `LanguageModel.precision`."""

    @abstractmethod
    def next_logits(
        self, ids: Sequence[int], raise_if_cancelled: CancelCheck, ahead: Sequence[int] = ()
    ) -> tuple[Tensor, int]:
        """Logits (vocabulary,) of the token after `ids`, and how many tokens came from the cache.

        ahead: tokens that will follow whatever the logits are, to be computed in the same pass.
        Calls `raise_if_cancelled` about every tenth of a second. The caller holds the lock.
        """

    def write(self, reply: Continuation) -> bool:
        """Draw tokens that wait in `reply` from then on; False where each needs a call of its own.
        The caller holds the lock.
        """
        return False

    def change(self, interventions: Interventions) -> None:
        """Compute from now on with these; nothing computed with others is used again.

        For whoever holds the lock. Raises InterventionError for a model that takes none.
        """
        check_changeable(self.name, interventions, is_changeable=self.takes_interventions)

    @abstractmethod
    def forget(self) -> None:
        """Drop the cache, after an aborted computation."""

    def start_over(self) -> None:
        """Drop everything that was computed, for whoever holds the lock."""
        self.forget()

    @abstractmethod
    def score_rows(self, rows: Sequence[Sequence[int]], firsts: Sequence[int]) -> list[list[float]]:
        """Log-probabilities of each row's tokens from its index `first` on.

        Holds the lock for one pass of the model at a time.
        """

    @abstractmethod
    def states(self, ids: Sequence[int], layer: int) -> Tensor:
        """Hidden states (tokens, hidden size) after `layer` blocks; after all, of the
        final norm."""

    def generate(self, request: Request) -> Iterator[Event]:
        """See `LanguageModel.generate`. An invalid request raises here, before the first event."""
        return self._run(self.open(request))

    def generate_afresh(self, request: Request) -> Iterator[Event]:
        """The same without any cache: each token is computed from the whole text before it."""
        return self._run(self.open(request), is_afresh=True)

    def generate_many(self, requests: Iterable[Request]) -> Iterator[tuple[int, Event]]:
        """See `LanguageModel.generate_many`. One after another."""
        return one_after_another(self, requests)

    @abstractmethod
    def together(self, count: int) -> Generate:
        """See `LanguageModel.together`."""

    def open(self, request: Request) -> Continuation:
        """The state of a new request. Raises as `LanguageModel.generate` does."""
        self.check_ids([*request.ids, *(id for id in request.forced if id != NO_TOKEN)])
        check_changeable(self.name, request.interventions, is_changeable=self.takes_interventions)
        if len(request.ids) >= self.context:
            raise ContextOverflow(
                f"the prompt has {len(request.ids)} tokens; the model's window of {self.context} "
                f"has room for {self.context - 1} and a reply"
            )
        return Continuation(
            request,
            tokenizer=self.tokenizer,
            piece=self.piece,
            ends=self.end_ids,
            context=self.context,
            vocabulary=None if request.constraint is None else self.vocab_bytes,
        )

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """See `LanguageModel.score`."""
        rows = [[*context, *continuation] for context, continuation in pairs]
        firsts = [len(context) for context, _ in pairs]
        for row, first in zip(rows, firsts, strict=True):
            if not 0 < first < len(row):
                raise ValueError("context and continuation need at least one token each")
            self.check_ids(row)
            if len(row) > self.context:
                raise ContextOverflow(
                    f"context and continuation have {len(row)} tokens; "
                    f"the model's window has {self.context}"
                )
        return self.score_rows(rows, firsts)

    def embed(self, ids: Sequence[int], layer: int = -1) -> NDArray[np.float32]:
        """See `LanguageModel.embed`."""
        self.check_text(ids)
        if not -1 <= layer <= self.layers:
            raise ValueError(
                f"layer {layer} does not exist; the model has 0 (the embeddings) to "
                f"{self.layers}, and -1 for the last"
            )
        with self.lock, torch.inference_mode():
            states = self.states(ids, self.layers if layer == -1 else layer)
            mean: NDArray[np.float32] = states.mean(0, dtype=torch.float32).numpy()
        return mean

    def logits(self, ids: Sequence[int], interventions: Interventions = UNCHANGED) -> Tensor:
        """Logits (vocabulary,) after `ids`, computed as in generation, with its cache."""
        with self.lock, torch.inference_mode():
            self.change(interventions)
            return self._next_logits(ids, lambda: None)[0]

    def check_text(self, ids: Sequence[int]) -> None:
        """Raises like `check_ids`, and ContextOverflow when the window is too short."""
        self.check_ids(ids)
        if len(ids) > self.context:
            raise ContextOverflow(
                f"the text has {len(ids)} tokens; the model's window has {self.context}"
            )

    def check_ids(self, ids: Sequence[int]) -> None:
        """Raises ValueError when there are no ids or one is not in the vocabulary."""
        if not ids:
            raise ValueError("there are no tokens to continue; expected at least one")
        for id in (min(ids), max(ids)):
            if not 0 <= id < self.vocabulary:
                raise ValueError(f"token id {id} is not in the vocabulary of {self.vocabulary}")

    def _run(self, reply: Continuation, *, is_afresh: bool = False) -> Iterator[Event]:
        yield from reply.begin()
        while not reply.has_ended:
            if is_afresh:
                with self.lock:
                    self.start_over()
            try:
                drawn = self._draw(reply, is_alone=is_afresh)
            except FAILURES as failure:
                yield reply.fail(failure)
            else:
                yield from reply.add(drawn)

    @torch.inference_mode()
    def _draw(self, reply: Continuation, *, is_alone: bool) -> Drawn:
        """The next token; unless it is to be alone, several may be drawn at once, which wait.
        Raises one of `FAILURES`.
        """
        reply.raise_if_cancelled()
        if reply.waiting:
            return reply.waiting.popleft()
        with self.lock:
            self.change(reply.interventions)
            if not is_alone and self.write(reply):
                return reply.waiting.popleft()
            logits, reused = self._next_logits(
                reply.sequence, reply.raise_if_cancelled, reply.ahead
            )
            drawn = reply.draw(logits)
        if reply.is_unbegun:
            reply.reused = reused
        return drawn

    def _next_logits(
        self, ids: Sequence[int], raise_if_cancelled: CancelCheck, ahead: Sequence[int] = ()
    ) -> tuple[Tensor, int]:
        """`next_logits` that leaves no half-filled cache after a failure."""
        try:
            return self.next_logits(ids, raise_if_cancelled, ahead)
        except Cancelled:
            raise
        except BaseException:
            self.forget()
            raise
