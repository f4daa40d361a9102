"""One reply while it grows: its tokens drawn, its text made visible, its end found.

Keep: whether a sequence is computed alone or among others, its rules are these, and nothing of
another sequence reaches it but the logits it is given.
"""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from chatapp.engine.errors import first_line
from chatapp.engine.events import Alternative, Event, Finished, FinishReason, Token
from chatapp.engine.model import Request, Tokenizer
from chatapp.engine.repetition import RepetitionFilter
from chatapp.engine.sampling import Sampler
from chatapp.engine.stopping import StopFilter


class Cancelled(Exception):
    """The caller's cancel event was set in the middle of a computation."""


FAILURES = (Cancelled, RuntimeError, MemoryError, OSError)
"""What may come of a computation and ends the reply it was for."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token as the logits before it gave it."""

    id: int
    logprob: float
    alternatives: tuple[Alternative, ...]


class Continuation:
    """What a request has come to so far.

    piece: a token's own text. ends: token ids that end a reply, beside those the request names.
    context: the model's window.
    sequence: the tokens of prompt and reply. reused: tokens of the prompt that came from a cache,
    for whoever computes it to say. has_ended: after its `Finished`, nothing comes.
    Raises ValueError for a stop string without a character.
    """

    def __init__(
        self,
        request: Request,
        *,
        tokenizer: Tokenizer,
        piece: Callable[[int], str],
        ends: Collection[int],
        context: int,
    ) -> None:
        self.sequence = list(request.ids)
        self.has_ended = False
        self._prompt_tokens = len(self.sequence)
        self._limit = self._prompt_tokens + request.sampling.max_tokens
        self._context = context
        self._cancel = request.cancel or threading.Event()
        self._top = request.top
        special = tokenizer.special
        self._ends = {*ends, *(special[text] for text in request.stop if text in special)}
        self._sampler = Sampler(request.sampling)
        self._piece = piece
        self._text = tokenizer.stream()
        self._stops = StopFilter([text for text in request.stop if text not in special])
        self._repeats = RepetitionFilter(
            partial(tokenizer.decode, list(request.ids)), request.sampling.max_repeats
        )
        self.reused = 0
        self._started = time.perf_counter()
        self._time_to_first_token = 0.0

    @property
    def is_unbegun(self) -> bool:
        """Whether no token has been drawn."""
        return len(self.sequence) == self._prompt_tokens

    @property
    def is_cancelled(self) -> bool:
        """Whether the caller wants no more of it."""
        return self._cancel.is_set()

    def raise_if_cancelled(self) -> None:
        """Raises Cancelled when the caller wants no more of it."""
        if self.is_cancelled:
            raise Cancelled

    def draw(self, logits: Tensor) -> Drawn:
        """The next token. logits: (vocabulary,), after the sequence as it is.

        Raises RuntimeError for logits that are not numbers.
        """
        normaliser = float(logits.logsumexp(0))
        if normaliser != normaliser:
            raise RuntimeError("its weights give logits that are not numbers")
        id = self._sampler.draw(logits, self.sequence)
        alternatives = []
        if self._top:
            values, ids = logits.topk(min(self._top, len(logits)))
            for other, value in zip(ids.tolist(), values.tolist(), strict=True):
                alternatives.append(Alternative(other, self._piece(other), value - normaliser))
        return Drawn(id, float(logits[id]) - normaliser, tuple(alternatives))

    def add(self, drawn: Drawn) -> list[Event]:
        """The events that a drawn token makes: of the token, of the end, or both."""
        if self.is_unbegun:
            self._time_to_first_token = time.perf_counter() - self._started
        if drawn.id in self._ends:
            return [self._end("stop", end_id=drawn.id)]
        self.sequence.append(drawn.id)
        visible = self._repeats.push(drawn.id, self._stops.push(self._text.push(drawn.id)))
        piece = self._piece(drawn.id)
        token = Token(drawn.id, visible, piece, drawn.logprob, drawn.alternatives)
        reason = self._bound()
        return [token] if reason is None else [token, self._end(reason)]

    def fail(self, failure: BaseException) -> Finished:
        """The end, by one of `FAILURES`."""
        if isinstance(failure, Cancelled):
            return self._end("cancelled")
        return self._end("error", f"the model failed: {first_line(failure)}")

    def _bound(self) -> FinishReason | None:
        """Why the reply does not go on, if it does not."""
        if self._repeats.hit:
            return "repetition"
        if self._stops.hit:
            return "stop"
        if len(self.sequence) == self._limit:
            return "length"
        return "context" if len(self.sequence) == self._context else None

    def _end(self, reason: FinishReason, message: str = "", end_id: int | None = None) -> Finished:
        self.has_ended = True
        rest = self._repeats.flush(self._stops.push(self._text.flush()) + self._stops.flush())
        return Finished(
            "stop" if self._stops.hit else reason,
            text=rest,
            prompt_tokens=self._prompt_tokens,
            reused_tokens=self.reused,
            reply_tokens=len(self.sequence) - self._prompt_tokens,
            time_to_first_token=self._time_to_first_token,
            seconds=time.perf_counter() - self._started,
            message=message,
            end_id=end_id,
        )
