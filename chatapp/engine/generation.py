"""The one generation loop, shared by every model that runs in this process.

Keep: a generation holds the model only while it computes a token, never while its consumer
looks at one, so that neither a forgotten generator nor a second one can block or disturb
another. Each token's computation starts from the full sequence; the cache makes it cheap.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chatapp.engine.errors import first_line
from chatapp.engine.events import Alternative, Event, Finished, FinishReason, Token
from chatapp.engine.generation_config import read_generation_config
from chatapp.engine.model import ContextOverflow, Sampling, Tokenizer
from chatapp.engine.repetition import RepetitionFilter
from chatapp.engine.sampling import Sampler
from chatapp.engine.stopping import StopFilter
from chatapp.engine.threads import ComputeLock

CancelCheck = Callable[[], None]
"""Called within a computation; raises Cancelled when the caller wants it no more."""


class Cancelled(Exception):
    """The caller's cancel event was set in the middle of a computation."""


class PieceTokenizer(Tokenizer, Protocol):
    """A tokenizer that can also show a single token.

    text_size: one more than the largest id that text can become.
    """

    text_size: int

    def piece(self, id: int) -> str: ...


@dataclass(frozen=True, slots=True)
class _Drawn:
    id: int
    logprob: float
    alternatives: tuple[Alternative, ...]
    reused: int


class LocalGenerator(ABC):
    """A `LanguageModel` whose logits are computed here.

    vocabulary: the number of logits. end_ids: any of them ends a reply. piece: a token's own
    text, for display. lock: held while the model computes.
    """

    start: Sequence[int] = ()

    def __init__(
        self,
        *,
        name: str,
        folder: Path | None,
        context: int,
        vocabulary: int,
        layers: int,
        tokenizer: PieceTokenizer,
    ) -> None:
        self.name = name
        self.folder = folder
        self.context = context
        self.vocabulary = vocabulary
        self.layers = layers
        self.tokenizer: Tokenizer = tokenizer
        self.end_ids = {tokenizer.end_id} | read_generation_config(folder).ends
        self.piece = tokenizer.piece
        self.lock = ComputeLock()

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the model computes. What its methods return is on the CPU."""

    @property
    @abstractmethod
    def precision(self) -> str:
        """See `LanguageModel.precision`."""

    @abstractmethod
    def next_logits(
        self, ids: Sequence[int], raise_if_cancelled: CancelCheck
    ) -> tuple[Tensor, int]:
        """Logits (vocabulary,) of the token after `ids`, and how many came from the cache.

        Calls `raise_if_cancelled` at least every tenth of a second or so. For whoever holds
        the lock.
        """

    @abstractmethod
    def forget(self) -> None:
        """Drop the cache, after a computation that broke off."""

    @abstractmethod
    def score_rows(self, rows: Sequence[Sequence[int]], firsts: Sequence[int]) -> list[list[float]]:
        """Log-probabilities of each row's tokens from its index `first` on.

        Takes the lock for one pass of the model at a time.
        """

    @abstractmethod
    def states(self, ids: Sequence[int], layer: int) -> Tensor:
        """Hidden states (tokens, hidden size) after `layer` blocks; after all, the final norm's."""

    def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        stop: Sequence[str] = (),
        cancel: threading.Event | None = None,
        top: int = 0,
    ) -> Iterator[Event]:
        """See `LanguageModel.generate`. Bad arguments raise here, before the first event."""
        prompt = list(ids)
        self.check_ids(prompt)
        if len(prompt) >= self.context:
            raise ContextOverflow(
                f"the prompt has {len(prompt)} tokens; the model's window of {self.context} "
                f"has room for {self.context - 1} and a reply"
            )
        special = self.tokenizer.special
        ends = self.end_ids | {special[text] for text in stop if text in special}
        texts = StopFilter([text for text in stop if text not in special])
        return self._run(prompt, sampling, ends, texts, cancel or threading.Event(), top)

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

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Logits (vocabulary,) after `ids`, as generation computes them, from its cache."""
        with self.lock, torch.inference_mode():
            return self._next_logits(ids, lambda: None)[0]

    def check_text(self, ids: Sequence[int]) -> None:
        """Raises as `check_ids` does, and ContextOverflow when the window is too short."""
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

    def _run(
        self,
        prompt: list[int],
        sampling: Sampling,
        ends: Collection[int],
        stops: StopFilter,
        cancel: threading.Event,
        top: int,
    ) -> Iterator[Event]:
        started = time.perf_counter()
        time_to_first_token = 0.0
        sequence, reused = list(prompt), 0
        sampler, text = Sampler(sampling), self.tokenizer.stream()
        repeats = RepetitionFilter(partial(self.tokenizer.decode, prompt), sampling.max_repeats)
        reason: FinishReason | None = None
        message = ""
        while reason is None:
            try:
                drawn = self._draw(sequence, sampler, cancel, top)
            except Cancelled:
                reason = "cancelled"
                break
            except (RuntimeError, MemoryError, OSError) as error:
                reason, message = "error", f"the model failed: {first_line(error)}"
                break
            if len(sequence) == len(prompt):
                time_to_first_token = time.perf_counter() - started
                reused = drawn.reused
            if drawn.id in ends:
                reason = "stop"
                break
            sequence.append(drawn.id)
            visible = repeats.push(drawn.id, stops.push(text.push(drawn.id)))
            piece = self.piece(drawn.id)
            yield Token(drawn.id, visible, piece, drawn.logprob, drawn.alternatives)
            if repeats.hit:
                reason = "repetition"
                break
            reason = self._bound(len(sequence), len(prompt) + sampling.max_tokens, stops)
        rest = repeats.flush(stops.push(text.flush()) + stops.flush())
        yield Finished(
            "stop" if stops.hit else reason,
            text=rest,
            prompt_tokens=len(prompt),
            reused_tokens=reused,
            reply_tokens=len(sequence) - len(prompt),
            time_to_first_token=time_to_first_token,
            seconds=time.perf_counter() - started,
            message=message,
        )

    def _bound(self, size: int, limit: int, stops: StopFilter) -> FinishReason | None:
        """Why a sequence of `size` tokens, `limit` at most, does not go on, if it does not."""
        if stops.hit:
            return "stop"
        if size == limit:
            return "length"
        return "context" if size == self.context else None

    @torch.inference_mode()
    def _draw(
        self, sequence: list[int], sampler: Sampler, cancel: threading.Event, top: int
    ) -> _Drawn:
        """Compute and draw one token. Raises Cancelled."""

        def raise_if_cancelled() -> None:
            if cancel.is_set():
                raise Cancelled

        raise_if_cancelled()
        with self.lock:
            logits, reused = self._next_logits(sequence, raise_if_cancelled)
            # Drawing too: it takes torch's threads, of which the lock knows the number.
            normaliser = float(logits.logsumexp(0))
            if normaliser != normaliser:
                raise RuntimeError("its weights give logits that are not numbers")
            id = sampler.draw(logits, sequence)
            alternatives = []
            if top:
                values, ids = logits.topk(min(top, len(logits)))
                for other, value in zip(ids.tolist(), values.tolist(), strict=True):
                    piece = self.piece(other)
                    alternatives.append(Alternative(other, piece, value - normaliser))
            return _Drawn(id, float(logits[id]) - normaliser, tuple(alternatives), reused)

    def _next_logits(
        self, ids: Sequence[int], raise_if_cancelled: CancelCheck
    ) -> tuple[Tensor, int]:
        """`next_logits`, with no half-filled cache left behind by a failure."""
        try:
            return self.next_logits(ids, raise_if_cancelled)
        except Cancelled:
            raise
        except BaseException:
            self.forget()
            raise
