"""Many sequences in one forward pass, which gives each of them its next token.

A pass of several rows takes hardly longer than one of a single row, because most time is spent
reading the weights. A sequence joins when there is room: its prompt is read alone, with the model's
caches (several prompts in one pass took as long), and a long one in parts, between the steps of the
others. Then it continues with the others, and leaves at its end.

Invariant: a sequence gives what it would give alone; only speed depends on the others. The native
kernels add up a row in the same order in any company. Where torch multiplies, several rows have
another order than one, which moves logits by about 1e-6 in float32: too little to change a token,
except between two equally good ones. In int8 an activation may then be rounded differently, so a
text can differ occasionally.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice
from typing import Protocol

import torch
from torch import Tensor

from chatapp.engine.cache.key_values import KeyValueCache, RowCache
from chatapp.engine.decoder.decoder import Decoder
from chatapp.engine.errors import Cancelled
from chatapp.engine.events import Event, Finished
from chatapp.engine.generation import FAILURES, CancelCheck, Continuation, Drawn
from chatapp.engine.kernels.machine import ComputeLock, machine_memory
from chatapp.engine.kernels.native_layers import AHEAD
from chatapp.engine.model import LanguageModel, Request, one_after_another

MOST_AT_ONCE = 8
"""Sequences; fewer if their keys and values would not fit."""

MOST_BYTES = 2**30
"""For these keys and values, and never more than half of the free memory."""

MOST_READ, _LEAST_READ, _PART_SECONDS = 256, 16, 0.25
"""New tokens of a prompt that are read between two steps: half as many after a part that took
longer, as it does late in a long prompt; else twice as many."""

Numbered = tuple[int, Event]


class DecoderModel(LanguageModel, Protocol):
    """A model that supports batches. lock: held while it computes."""

    decoder: Decoder
    lock: ComputeLock

    def open(self, request: Request) -> Continuation:
        """The state of a new request. Raises as `LanguageModel.generate` does."""
        ...

    def read(
        self, ids: Sequence[int], raise_if_cancelled: CancelCheck
    ) -> tuple[Tensor, int, KeyValueCache]:
        """Logits (vocabulary,) after a prompt, the number of its cached tokens, and its cache."""
        ...

    def keep(self, caches: Sequence[KeyValueCache]) -> None:
        """Let no other prompt take the place of these, and of these alone."""
        ...

    def known(self, ids: Sequence[int]) -> int:
        """How many of the first tokens of a prompt are cached."""
        ...


def generate_many(
    model: DecoderModel, requests: Iterable[Request], most: int = MOST_AT_ONCE
) -> Iterator[Numbered]:
    """See `LanguageModel.generate_many`. most: sequences in parallel."""
    coming = iter(requests)
    first = list(islice(coming, 2))
    if len(first) < 2:  # a single sequence can use guesses and several tokens a call
        yield from one_after_another(model, first)
        return
    batch = Batch(model, most)
    waiting = enumerate(chain(first, coming))
    upcoming = next(waiting, None)
    while upcoming is not None or not batch.is_empty:
        while upcoming is not None and batch.has_room(upcoming[1]):
            number, request = upcoming
            if request.interventions:  # a pass of several rows is of one model
                yield from ((number, event) for _, event in one_after_another(model, [request]))
            else:
                yield from batch.join(number, request)
            upcoming = next(waiting, None)
        yield from batch.step()


class Batch:
    """Sequences of one model that advance together.

    most: how many. limit: bytes for their keys and values; a single sequence may exceed it.
    """

    def __init__(
        self, model: DecoderModel, most: int = MOST_AT_ONCE, limit: int | None = None
    ) -> None:
        self._model = model
        self._most = most
        self._limit = min(MOST_BYTES, machine_memory().available // 2) if limit is None else limit
        # One for each row of the cache, with its number; ended ones leave before the next step.
        self._members: list[tuple[int, Continuation]] = []
        self._reading: dict[int, tuple[Continuation, KeyValueCache]] = {}  # the oldest first
        self._parts = count()
        self._cache: RowCache | None = None
        self._position = model.decoder.new_cache().bytes_per_position
        self._part = MOST_READ

    @property
    def is_empty(self) -> bool:
        """Whether no sequence is active."""
        return not self._active()

    def _active(self) -> list[Continuation]:
        return [reply for reply in self._replies().values() if not reply.has_ended]

    def _replies(self) -> dict[int, Continuation]:
        return dict(self._members) | {n: reply for n, (reply, _) in self._reading.items()}

    def has_room(self, request: Request) -> bool:
        """Whether a request can join now."""
        active, cache = self._active(), self._cache
        if not active:
            return True
        longest = len(request.ids) + len(request.forced) + request.sampling.max_tokens
        needed = max(self._positions(longest), *(self._positions(r.longest) for r in active))
        is_small = cache is not None and needed <= cache.positions and len(active) < cache.rows
        return is_small or len(active) < self._shape(needed)[0]

    @torch.inference_mode()
    def join(self, number: int, request: Request) -> list[Numbered]:
        """Read a prompt and draw its first token."""
        try:
            reply = self._model.open(request)
        except ValueError as error:
            return [(number, Finished("error", message=str(error)))]
        forced = [(number, event) for event in reply.begin()]
        if reply.has_ended:
            return forced
        reply.reused = -1
        return [*forced, *self._read(number, reply, MOST_READ)]

    def _read(self, number: int, reply: Continuation, most: int) -> list[Numbered]:
        """Read a prompt, or at most so many more tokens; draw the first token after the last."""
        try:
            reply.raise_if_cancelled()
            began = time.perf_counter()
            with self._model.lock:
                until = self._model.known(reply.sequence) + most
                logits, reused, cache = self._model.read(
                    reply.sequence[:until], reply.raise_if_cancelled
                )
                reply.reused = reused if reply.reused < 0 else reply.reused
                if until < len(reply.sequence):
                    is_slow = time.perf_counter() - began > _PART_SECONDS
                    part = self._part // 2 if is_slow else 2 * self._part
                    self._part = min(MOST_READ, max(_LEAST_READ, part))
                    self._reading[number] = reply, cache
                    return []
                self._reading.pop(number, None)
                self._admit(number, reply, cache)
                drawn = reply.draw(logits)
        except FAILURES as failure:
            return [(number, reply.fail(failure))]
        return [(number, event) for event in reply.add(drawn)]

    @torch.inference_mode()
    def step(self) -> list[Numbered]:
        """Give one more token of each, of which several may be drawn at once, and read a part of a
        prompt that is not read: in turns, of the oldest, and of the one with the least to read.
        """
        read: list[Numbered] = []
        self._reading = {n: pair for n, pair in self._reading.items() if not pair[0].has_ended}
        if self._reading:
            number = min(self._reading, key=self._left if next(self._parts) % 2 else int)
            read = self._read(number, self._reading[number][0], self._part)
        self._keep()
        self._let_go()
        if self._cache is None or not self._members:
            return read
        drawn: list[Drawn | Exception | None]
        try:
            with self._model.lock:
                replies = [reply for _, reply in self._members]
                drawn = self._drawn(replies, self._cache)
        except FAILURES as failure:
            drawn = [failure] * len(self._members)
        return read + [
            (number, event)
            for (number, reply), result in zip(self._members, drawn, strict=True)
            for event in (
                [reply.fail(result)]
                if isinstance(result, Exception)
                else reply.add(result)
                if result is not None
                else []
            )
        ]

    def _drawn(
        self, replies: list[Continuation], cache: RowCache
    ) -> list[Drawn | Exception | None]:
        """The next token of each; None of one that joined while others have tokens waiting."""
        decoder = self._model.decoder
        if any(reply.waiting for reply in replies) or write_ahead(decoder, replies, cache):
            return [_next(reply, None) for reply in replies]
        ids = [reply.sequence[-1] for reply in replies]
        logits = decoder.forward_rows(ids, cache, raise_if_cancelled=self._raise_if_cancelled)
        return [_next(reply, row) for reply, row in zip(replies, logits, strict=True)]

    def _left(self, number: int) -> int:
        """The tokens of a prompt that are not read yet."""
        reply, cache = self._reading[number]
        return len(reply.sequence) - len(cache)

    def _keep(self) -> None:
        """Let the model keep the caches of prompts that are read in part, and no others."""
        reading = self._reading.values()
        self._model.keep([cache for reply, cache in reading if not reply.has_ended])

    def leave(self, number: int) -> None:
        """Remove a sequence that nobody wants any more, if it is active."""
        if reply := self._replies().get(number):
            reply.has_ended = True
            self._keep()

    def _positions(self, tokens: int) -> int:
        """Positions of so many tokens of prompt and reply, or of the window."""
        return len(self._model.start) + min(tokens, self._model.context)

    def _shape(self, needed: int) -> tuple[int, int]:
        """The rows, as many as allowed, and the positions, as many as fit with that number."""
        whole = self._positions(self._model.context)
        positions = min(whole, max(needed, self._limit // (self._position * self._most)))
        return max(1, min(self._most, self._limit // (self._position * positions))), positions

    def _admit(self, number: int, reply: Continuation, cache: KeyValueCache) -> None:
        """Give a sequence a row: a free one, or the next."""
        if all(other.has_ended for _, other in self._members):
            self._members.clear()
        self._make_room(reply, cache)
        assert self._cache is not None
        row = next(
            (row for row, (_, other) in enumerate(self._members) if other.has_ended),
            len(self._members),
        )
        self._cache.put(row, cache)
        self._members[row : row + 1] = [(number, reply)]

    def _make_room(self, reply: Continuation, like: KeyValueCache) -> None:
        """See to a cache with a row for one more sequence, long enough for all."""
        held, needed = self._cache, self._positions(reply.longest)
        members = [other for _, other in self._members if not other.has_ended]
        if held is not None and needed <= held.positions and len(members) < held.rows:
            if not members:
                held.clear()
            return
        self._let_go()
        needed = max([needed, *(self._positions(other.longest) for other in members)])
        self._cache = RowCache(like, *self._shape(needed))
        if held is not None and members:
            self._cache.copy(held)

    def _let_go(self) -> None:
        """Free the rows of ended sequences."""
        for row in reversed(range(len(self._members))):
            if self._members[row][1].has_ended:
                assert self._cache is not None
                self._cache.remove(row)
                self._members[row] = self._members[-1]
                del self._members[-1]

    def _raise_if_cancelled(self) -> None:
        """Raises Cancelled when none of them is wanted any more."""
        if all(reply.is_cancelled for _, reply in self._members):
            raise Cancelled


def write_ahead(
    decoder: Decoder, replies: Sequence[Continuation], cache: KeyValueCache | RowCache
) -> bool:
    """Draw several more tokens for each sequence of a cache in one call, which wait in its reply.

    False where each token needs a call of its own.
    """
    most = min(AHEAD, *(reply.room for reply in replies))
    structs = [reply.begin_natively(decoder.vocabulary, most) for reply in replies]
    samplings = [struct for struct in structs if struct is not None]
    if len(samplings) < len(replies):
        return False
    written = decoder.write([reply.sequence[-1] for reply in replies], cache, samplings, most)
    for reply, tokens in zip(replies, written, strict=False):
        reply.end_natively(tokens)
    return any(written)


class SharedBatch:
    """Sequences that are drawn in turn and advance together: when the caller needs a token that is
    not computed yet, a step computes one for each sequence.

    most: how many.
    """

    def __init__(self, model: DecoderModel, most: int) -> None:
        self._model = model
        self._batch = Batch(model, most)
        self._numbers = count()
        self._computed: dict[int, deque[Event]] = {}

    def generate(self, request: Request) -> Iterator[Event]:
        """See `LanguageModel.generate`. Sequences beyond the room continue alone.

        Closing the iterator makes room.
        """
        return self._draw(request, self._model.generate(request))

    def _draw(self, request: Request, alone: Iterator[Event]) -> Iterator[Event]:
        if request.interventions or not self._batch.has_room(request):
            yield from alone
            return
        number = next(self._numbers)
        computed = self._computed[number] = deque[Event]()
        try:
            computed.extend(event for _, event in self._batch.join(number, request))
            while True:
                while computed:
                    event = computed.popleft()
                    yield event
                    if isinstance(event, Finished):
                        return
                for other, event in self._batch.step():
                    self._computed[other].append(event)
        finally:
            self._batch.leave(number)
            del self._computed[number]


def _next(reply: Continuation, logits: Tensor | None) -> Drawn | Exception | None:
    """The next token of a sequence, or the reason why there is none. logits: None where no token is
    drawn but those that wait.
    """
    try:
        reply.raise_if_cancelled()
        if logits is None:
            return reply.waiting.popleft() if reply.waiting else None
        return reply.draw(logits)
    except FAILURES as failure:
        return failure
