"""The generation loop of every local model.

Invariants: a generation holds the model's lock only while it computes a token, never while its
consumer looks at one, so neither a forgotten generator nor a second one can block or disturb
another. Each token's computation starts from the full sequence; the cache makes it cheap.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chatapp.engine.constraint.vocabulary import Vocabulary
from chatapp.engine.continuation import FAILURES, Cancelled, Continuation, Drawn
from chatapp.engine.decoder.interventions import UNCHANGED, Interventions, check_changeable
from chatapp.engine.events import Event
from chatapp.engine.files.generation_config import read_generation_config
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.kernels.threads import ComputeLock
from chatapp.engine.model import (
    ContextOverflow,
    Generate,
    PieceTokenizer,
    Request,
    Tokenizer,
    one_after_another,
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
        self.end_ids = {tokenizer.end_id} | read_generation_config(files).ends
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

    def change(self, interventions: Interventions) -> None:
        """Compute from now on with these; nothing computed with others is used again.

        For whoever holds the lock. Raises InterventionError for a model that takes none.
        """
        check_changeable(self.name, interventions, is_changeable=self.takes_interventions)

    @abstractmethod
    def forget(self) -> None:
        """Drop the cache, after an aborted computation."""

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

    def generate_many(self, requests: Iterable[Request]) -> Iterator[tuple[int, Event]]:
        """See `LanguageModel.generate_many`. One after another."""
        return one_after_another(self, requests)

    @abstractmethod
    def together(self, count: int) -> Generate:
        """See `LanguageModel.together`."""

    def open(self, request: Request) -> Continuation:
        """The state of a new request. Raises as `LanguageModel.generate` does."""
        self.check_ids([*request.ids, *request.forced])
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

    def _run(self, reply: Continuation) -> Iterator[Event]:
        yield from reply.begin()
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
            self.change(reply.interventions)
            logits, reused = self._next_logits(
                reply.sequence, reply.raise_if_cancelled, reply.ahead
            )
            # Drawing needs the lock, too: it uses torch's threads, whose number the lock sets.
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
