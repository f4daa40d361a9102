"""One thread that computes for all requests of a model."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from queue import Empty, PriorityQueue
from typing import TYPE_CHECKING, Any, TypeVar

from chatapp.common.unforeseen import describe_unforeseen
from chatapp.engine.events import Event, Finished
from chatapp.engine.model import LanguageModel, Request
from chatapp.server.prompts import BadRequestError
from chatapp.server.scores import PromptScorer

if TYPE_CHECKING:
    from chatapp.engine.batch import Batch

MOST_WAITING = 64
"""Sequences and other computations that may wait; more are refused."""

MOST_WRITTEN = 64
"""Replies that are written at once; fewer if their keys and values would not fit."""

_READING = 0.25
"""Seconds of reading prompts after which those that are being written get a token."""

_log = logging.getLogger("chatapp.server")

_Result = TypeVar("_Result")


FAILED = "the model has failed; the server's log says why"
"""The message of an end that no request is to blame for."""


class ModelFailedError(Exception):
    """The model has failed, for no fault of the request."""


def raise_error(end: Finished) -> None:
    """Raise BadRequestError for an end that is an error, ModelFailedError if that is nobody's."""
    if end.reason == "error":
        raise ModelFailedError(FAILED) if end.message == FAILED else BadRequestError(end.message)


class BusyError(Exception):
    """So many requests wait that another one is refused."""


@dataclass(frozen=True, slots=True)
class _Sequence:
    """A text to be written. deliver: takes its events, on the event loop's thread."""

    request: Request
    deliver: Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class _Computation:
    """Anything else. deliver: takes its result or its error."""

    compute: Callable[[], Any]
    deliver: Callable[[Any, BaseException | None], None]


class Worker:
    """Computes with a model, for the tasks of an event loop. scorer: for `call`."""

    def __init__(self, model: LanguageModel) -> None:
        self._model, self.scorer = model, PromptScorer(model)
        self._waiting: deque[_Sequence | _Computation] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._active: dict[int, _Sequence] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outgoing: list[Callable[[], None]] = []
        """What the event loop has to call, in this order."""
        self._numbers = count()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End what is being written, and the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    async def generate(self, requests: Sequence[Request]) -> AsyncGenerator[tuple[int, Event]]:
        """The events of several requests with their numbers; each ends with a `Finished`.

        Closing the iterator ends them. Raises BusyError.
        """
        events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        cancel = threading.Event()
        self._add(
            _Sequence(
                replace(request, cancel=cancel),
                lambda event, number=number: events.put_nowait((number, event)),  # type: ignore[misc]
            )
            for number, request in enumerate(requests)
        )
        left = len(requests)
        try:
            while left:
                number, event = await events.get()
                left -= isinstance(event, Finished)
                yield number, event
        finally:
            cancel.set()

    async def call(self, compute: Callable[[], _Result]) -> _Result:
        """What `compute` returns, on the model's thread, or what it raises. Raises BusyError."""
        result: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()

        def deliver(value: Any, error: BaseException | None) -> None:
            if result.done():
                return
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)

        self._add([_Computation(compute, deliver)])
        return await result

    def _add(self, jobs: Any) -> None:
        jobs = list(jobs)
        self._loop = asyncio.get_running_loop()
        with self._changed:
            if self._is_closed or len(self._waiting) + len(jobs) > MOST_WAITING:
                raise BusyError
            self._waiting.extend(jobs)
            self._changed.notify()

    def _run(self) -> None:
        batch = self._new_batch()
        while not self._is_closed:
            with self._changed:
                while not (self._waiting or self._active or self._is_closed):
                    self._changed.wait()
            try:
                self._admit(batch)
                if batch is not None:
                    self._deliver(batch.step())
            except BaseException as error:
                _log.error("%s", describe_unforeseen(error))
                self._end_all(FAILED)
                batch = self._new_batch()
        self._end_all("the server has ended")

    def _new_batch(self) -> "Batch | None":
        """Where sequences advance together; None where only one can be written at a time."""
        from chatapp.engine.backends.local import LocalModel
        from chatapp.engine.batch import Batch

        return Batch(self._model, MOST_WRITTEN) if isinstance(self._model, LocalModel) else None

    def _admit(self, batch: "Batch | None") -> None:
        """Begin with those that wait, the first first, as long as there is room, and time."""
        until = time.monotonic() + _READING
        while not self._is_closed and time.monotonic() < until:
            with self._changed:
                if not self._waiting:
                    return
                job = self._waiting[0]
                if (
                    batch is not None
                    and isinstance(job, _Sequence)
                    and not batch.has_room(job.request)
                ):
                    return
                self._waiting.popleft()
            if isinstance(job, _Computation):
                self._compute(job)
            elif job.request.cancel is not None and job.request.cancel.is_set():
                self._outgoing.append(partial(job.deliver, Finished("cancelled")))
                self._hand_over()
            elif batch is None or job.request.interventions:  # a pass of several is of one model
                self._write_alone(job)
            else:
                number = next(self._numbers)
                self._active[number] = job
                self._deliver(batch.join(number, job.request))

    def _compute(self, job: _Computation) -> None:
        try:
            call = partial(job.deliver, job.compute(), None)
        except BaseException as error:
            call = partial(job.deliver, None, error)
        self._outgoing.append(call)
        self._hand_over()

    def _write_alone(self, job: _Sequence) -> None:
        number = next(self._numbers)
        self._active[number] = job
        try:
            for event in self._model.generate(job.request):
                self._deliver([(number, event)])
        except ValueError as error:
            self._deliver([(number, Finished("error", message=str(error)))])

    def _deliver(self, events: Iterable[tuple[int, Event]]) -> None:
        for number, event in events:
            self._outgoing.append(partial(self._active[number].deliver, event))
            if isinstance(event, Finished):
                del self._active[number]
        self._hand_over()

    def _hand_over(self) -> None:
        """Wake the event loop, which takes Python from this thread, once for all that is new."""
        if self._outgoing and self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(_call_all, self._outgoing)
        self._outgoing = []

    def _end_all(self, reason: str) -> None:
        end = Finished("error", message=reason)
        self._deliver([(number, end) for number in self._active])
        if self._is_closed:
            with self._changed:
                for waiting in self._waiting:
                    if isinstance(waiting, _Sequence):
                        self._outgoing.append(partial(waiting.deliver, end))
                    else:
                        self._outgoing.append(partial(waiting.deliver, None, BusyError()))
                self._waiting.clear()
                self._hand_over()


_PRECEDENCE = 20
"""How much smaller work has to be to come before what was there one request earlier."""


class Turns:
    """A thread of its own for work that takes long: of what waits, the smallest comes first, so
    that many requests with much of it hold up none with little; what waits long comes, too.
    """

    def __init__(self) -> None:
        self._thread, self._numbers, self._is_closed = ThreadPoolExecutor(1), count(), False
        self._waiting = PriorityQueue[tuple[int, int, Future[Any], Callable[[], Any]]]()

    async def take(self, size: int, work: Callable[[], _Result]) -> _Result:
        """What the work returns or raises. Raises BusyError when too much of it waits."""
        if self._is_closed or self._waiting.qsize() >= MOST_WAITING:
            raise BusyError
        future: Future[_Result] = Future()
        number = next(self._numbers)
        self._waiting.put((size + _PRECEDENCE * number, number, future, work))
        self._thread.submit(self._next)
        return await asyncio.wrap_future(future)

    def _next(self) -> None:
        with suppress(Empty):  # `close` has taken it
            *_, future, work = self._waiting.get_nowait()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)

    def close(self) -> None:
        """End with the work that is being done; who waits is cancelled."""
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        while not self._waiting.empty():
            self._waiting.get_nowait()[2].cancel()


def _call_all(calls: Iterable[Callable[[], None]]) -> None:
    for call in calls:
        call()
