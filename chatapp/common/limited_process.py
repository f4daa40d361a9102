"""A child process for foreign programs and files, with limits on memory and time, reused.

Invariant: foreign bytes can harm only the child. It gets a minimal environment and no open files,
it ends with this process, and it answers one request at a time.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty, Full, Queue
from typing import Any, Literal

from chatapp.common.userfiles import UserError

_ENVIRONMENT = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_START_SECONDS = 60.0
_POLL_SECONDS = 0.05
"""Interval at which the child is asked whether the caller still waits."""

_LATE_SECONDS = 2.0
"""After which the child ends by itself when its time is over: its caller may have been killed."""

_AHEAD = 4
"""Items that the child may send before the caller has taken them."""

_PROGRAM = """\
import sys
sys.path[:] = {paths!r}
from chatapp.common.limited_process import serve
serve({module!r}, {function!r}, {memory!r})
"""

Limit = Literal["time", "memory", "end"]
Answer = Callable[[Any], Iterable[Any]]
"""Yields the items that answer a request; both are JSON. The caller receives its `UserError`s."""


class LimitPassedError(Exception):
    """A request was given up. limit: "time" or "memory" was exceeded; "end" is a crash."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.limit = limit


def do_nothing() -> None:
    """The default of `wait`: nothing can stop the request."""


class LimitedProcess:
    """A process that answers requests by calling a function of a module; the first request starts
    it.

    module, function: an `Answer`, imported in the process. memory: bytes of address space, enforced
    on Linux only. After an exceeded limit, the next request starts a new process.
    """

    def __init__(self, module: str, function: str, *, memory: int) -> None:
        paths = [path for path in sys.path if os.path.isabs(path)]
        self._program = _PROGRAM.format(
            paths=paths, module=module, function=function, memory=memory
        )
        self._lock = threading.Lock()
        self._child: _Child | None = None

    def ask(self, request: Any, seconds: float) -> Any:
        """Return the only item of an answer. Raises as `stream` does."""
        (item,) = self.stream(request, seconds)
        return item

    def stream(
        self, request: Any, seconds: float, wait: Callable[[], None] = do_nothing
    ) -> Iterator[Any]:
        """Yield the items of an answer as they arrive.

        seconds: limit until the next item. wait: called repeatedly while waiting; an exception of
        it ends the request. Raises LimitPassedError, and passes on a UserError of the function.
        """
        with self._lock:
            if self._child is None or not self._child.is_usable:
                self._child = child = _Child(self._program)
                weakref.finalize(self, child.end)
            try:
                yield from self._child.answers(request, seconds, wait)
            except UserError:
                raise
            except BaseException:  # includes a caller that stops iterating early
                self._end()
                raise

    def close(self) -> None:
        """End the process, if it runs."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
        self._child = None


class _Child:
    """A running process. Raises LimitPassedError when it cannot be started."""

    def __init__(self, program: str) -> None:
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        except OSError:
            raise LimitPassedError("end") from None
        self._owner = os.getpid()
        self._ended = False
        self._lines: Queue[bytes] = Queue(_AHEAD)
        threading.Thread(target=self._read, daemon=True).start()
        self._next(_START_SECONDS, do_nothing)

    @property
    def is_usable(self) -> bool:
        """Whether it runs and is a child of this process, not of one that forked."""
        return self._owner == os.getpid() and not self._ended and self._process.poll() is None

    def answers(self, request: Any, seconds: float, wait: Callable[[], None]) -> Iterator[Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([seconds, request]).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise LimitPassedError("end") from None
        while True:
            answer = self._next(seconds, wait)
            if "item" in answer:
                yield answer["item"]
            elif "sentence" in answer:
                raise UserError(answer["sentence"])
            elif limit := answer["limit"]:
                raise LimitPassedError(limit)
            else:
                return

    def end(self) -> None:
        self._ended = True
        if self._owner != os.getpid():
            return
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(OSError):  # unsent data need not be sent
                stream.close()

    def _next(self, seconds: float, wait: Callable[[], None]) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=_POLL_SECONDS)
            except Empty:
                wait()
                if time.monotonic() > until:
                    raise LimitPassedError("time") from None
                continue
            if not line:
                raise LimitPassedError("end")
            answer: dict[str, Any] = json.loads(line)
            return answer

    def _read(self) -> None:
        """Read the lines of the process as fast as the caller takes them; b"" after the last."""
        assert self._process.stdout is not None
        line = b"-"
        while line and not self._ended:
            try:
                line = self._process.stdout.readline()
            except (OSError, ValueError):  # closed in the meantime
                line = b""
            while not self._ended:
                try:
                    self._lines.put(line, timeout=1.0)
                    break
                except Full:
                    continue


def serve(module: str, function: str, memory: int) -> None:
    """Answer requests on standard input until it ends; the child process runs this."""
    import importlib
    import logging

    logging.disable()
    _bound(memory)
    answer: Answer = getattr(importlib.import_module(module), function)
    _write({"limit": None})
    for line in sys.stdin.buffer:
        _write(_answered(answer, line))


def _answered(answer: Answer, line: bytes) -> dict[str, Any]:
    """Write the items of an answer; return how it ended."""
    try:
        seconds, request = json.loads(line)
        _end_after(seconds + _LATE_SECONDS)
        for item in answer(request):
            _end_after(0)
            _write({"item": item})
            _end_after(seconds + _LATE_SECONDS)
        return {"limit": None}
    except UserError as error:
        return {"sentence": str(error)}
    except MemoryError:
        return {"limit": "memory"}
    except BaseException:  # whatever a library raises on malicious bytes
        return {"limit": "end"}
    finally:
        _end_after(0)


def _end_after(seconds: float) -> None:
    """Have the system end this process after some seconds, whatever it does then; 0: not."""
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _write(answer: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


def _bound(memory: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    except (OSError, ValueError):  # macOS refuses the second
        return
