"""The generation loop of every model that runs in this process, for one sequence.

Keep: a generation holds the model only while it computes a token, never while its consumer
looks at one, so that neither a forgotten generator nor a second one can block or disturb
another. Each token's computation starts from the full sequence; the cache makes it cheap.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chatapp.engine.continuation import FAILURES, Cancelled, Continuation, Drawn
from chatapp.engine.events import Event
from chatapp.engine.generation_config import read_generation_config
from chatapp.engine.model import (
    ContextOverflow,
    Generate,
    Request,
    Sampling,
    Tokenizer,
    one_after_another,
)
from chatapp.engine.threads import ComputeLock

CancelCheck = Callable[[], None]
"""Called within a computation; raises Cancelled when the caller wants it no more."""


class PieceTokenizer(Tokenizer, Protocol):
    """A tokenizer that can also show a single token.

    text_size: one more than the largest id that text can become.
    """

    text_size: int

    def piece(self, id: int) -> str: ...


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
        return self._run(self.open(Request(ids, sampling, stop, cancel, top)))

    def generate_many(self, requests: Iterable[Request]) -> Iterator[tuple[int, Event]]:
        """See `LanguageModel.generate_many`. One after another."""
        return one_after_another(self, requests)

    @abstractmethod
    def together(self, count: int) -> Generate:
        """See `LanguageModel.together`."""

    def open(self, request: Request) -> Continuation:
        """What is to become of a request. Raises as `LanguageModel.generate` does."""
        self.check_ids(list(request.ids))
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

    def _run(self, reply: Continuation) -> Iterator[Event]:
        while not reply.has_ended:
            try:
                drawn = self._draw(reply)
            except FAILURES as failure:
                yield reply.fail(failure)
            else:
                yield from reply.add(drawn)

    @torch.inference_mode()
    def _draw(self, reply: Continuation) -> Drawn:
        """Compute and draw one token. Raises one of `FAILURES`."""
        reply.raise_if_cancelled()
        with self.lock:
            logits, reused = self._next_logits(reply.sequence, reply.raise_if_cancelled)
            # Drawing too: it takes torch's threads, of which the lock knows the number.
            drawn = reply.draw(logits)
        if reply.is_unbegun:
            reply.reused = reused
        return drawn

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
