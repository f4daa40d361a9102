"""Running something under limits: functions on foreign bytes, and programs of others.

Invariant: when a call is over, for whatever reason, or this process has ended, all processes of the
call have ended. No shell sees an argument; a process gets only the variables that it was given.
What it sends is read in bounded pieces, which wait in a bounded queue.
"""

import hashlib
import importlib
import json
import logging
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any, Literal

from chatapp.common.confinement import confine
from chatapp.common.foreign import clean, parse_json
from chatapp.common.userfiles import UserError, open_regular, reason

_SUPERVISOR = Path(__file__).parent / "supervisor.py"
_MARK = "CHATAPP_CALL"
"""The variable that identifies a program whose supervisor was killed."""

_WORKER_VARIABLES = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_PROGRAM_VARIABLES = ("PATH", "HOME", "LANG")

_START_SECONDS = 60.0
_ENDING_SECONDS = 10.0
_POLL_SECONDS = 0.05
"""Interval at which a caller is asked whether it still waits."""

_LATE_SECONDS = 2.0
"""After which a worker ends by itself when its time is over: its caller may have been killed."""

_AHEAD = 4
"""Lines that a process may send before the caller has taken them."""

_LONGEST_LINE = 64 * 2**20
_CHUNK = 65_536
_ERROR_LENGTH = 500
"""Characters."""

Limit = Literal["time", "memory", "end"]
Answer = Callable[[Any], Iterable[Any]]
"""Yields the items that answer a request; both are JSON. The caller receives its `UserError`s."""


class LimitPassedError(Exception):
    """A call was given up. limit: "time" or "memory" was exceeded; "end" is a crash."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.limit = limit


def do_nothing() -> None:
    """The default of `wait`: nothing can stop the call."""


def python_command(module: str, function: str, *arguments: object) -> tuple[str, ...]:
    """The command line that calls a function of a module, imported as here, with literals."""
    paths = [path for path in sys.path if os.path.isabs(path)]
    code = f"import sys; sys.path[:] = {paths!r}; from {module} import {function}"
    return sys.executable, "-P", "-c", f"{code}; {function}(*{arguments!r})"


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of ours. No file in the current folder can replace one of
    ours, unless this program runs from that folder itself.
    """
    safe = [] if sys.path[:1] == [os.getcwd()] else ["-P"]
    return [sys.executable, *safe, "-m", module, *arguments]


@dataclass(frozen=True, slots=True)
class Program:
    """command: the program and its arguments. folder: its working directory. environment: the names
    of variables that it gets in addition to PATH, HOME and LANG. variables: others, with their
    values.
    """

    command: tuple[str, ...]
    folder: Path
    environment: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def definition(self) -> dict[str, Any]:
        """Everything that determines what runs, as JSON data: also a current digest of each file
        that the command names by its path.
        """
        paths = {part: self.folder / part for part in self.command}
        digests = {part: _digest(path) for part, path in paths.items() if os.path.isfile(path)}
        definition = {
            "command": list(self.command),
            "folder": str(self.folder),
            "environment": list(self.environment),
            "files": digests,
        }
        return definition | ({"variables": digests_of(self.variables)} if self.variables else {})


def digests_of(values: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Digests of values that may be secret, by their names."""
    return {name: hashlib.sha256(value.encode()).hexdigest() for name, value in values}


def _digest(path: Path) -> str:
    """A file's digest; for an unreadable one, a value that no content has."""
    try:
        with open_regular(path) as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:
        return "cannot be read"


class Supervision:
    """What runs one program with a supervisor above it, which ends all that it starts.

    command, options: for `subprocess.Popen` or `anyio.open_process`. theirs: to be closed once it
    runs. Raises UserError where the system has no groups of processes: nothing there would end what
    a program starts.
    """

    def __init__(self, program: Program) -> None:
        if not hasattr(os, "killpg"):  # Windows
            raise UserError("programs of tools, servers and rewards run on Linux and macOS alone")
        self._ours, self.theirs = socket.socketpair()
        self._mark = secrets.token_hex(8)
        control = self.theirs.fileno()
        # -E: ignores Python's variables; -P: imports no file from the supervisor's folder.
        start = [sys.executable, "-E", "-P", str(_SUPERVISOR), str(control)]
        self.command = [*start, *program.command]
        self.options: dict[str, Any] = {
            "cwd": program.folder,
            "env": _variables((*_PROGRAM_VARIABLES, *program.environment))
            | dict(program.variables)
            | {_MARK: self._mark},
            "pass_fds": [control],
            "start_new_session": True,  # Ctrl+C is for the chat
        }

    def start(self, **streams: Any) -> "subprocess.Popen[bytes]":
        """Start the program. Raises UserError."""
        try:
            with self.theirs:
                return subprocess.Popen(self.command, **self.options, **streams)
        except (OSError, ValueError) as error:
            raise UserError(f"{self.command[5]} cannot be started: {reason(error)}") from None

    def end(self) -> None:
        """End the program and all processes it started. Does not wait."""
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_WR)

    def wait(self, process: "subprocess.Popen[bytes]") -> int | str:
        """End a started program; see `ending`."""
        self.end()
        try:
            process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return self.ending()

    def ending(self) -> int | str:
        """How the program ended, once its supervisor has ended: its exit status, minus a signal's
        number, or a sentence on why it could not be started.
        """
        with self._ours:
            text = self._ours.recv(_CHUNK).decode("utf-8", "replace")
        if not text:
            self._end_strays()
            return "its supervisor was killed"
        return int(text) if text.lstrip("-").isdigit() else text

    def _end_strays(self) -> None:
        """End the processes of a supervisor that was killed."""
        import psutil

        strays = True
        while strays:
            strays = False
            for process in psutil.process_iter():
                with suppress(psutil.Error, OSError):
                    if process.environ().get(_MARK) == self._mark:
                        process.kill()
                        strays = True


def _variables(names: Sequence[str]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def run_program(
    program: Program, given: bytes, seconds: float, most: int, wait: Callable[[], None]
) -> str:
    """The output of a program that runs to its end. given: its standard input. most: bytes of
    output, after which it is ended. wait: called repeatedly; an exception of it ends the program.

    Raises UserError when it cannot be started, fails or takes too long.
    """
    import tempfile  # --help starts no program

    supervision = Supervision(program)
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile() as stdin:  # a pipe would wait for a program that reads late
        stdin.write(given)
        stdin.seek(0)
        with supervision.start(stdin=stdin, stdout=pipe, stderr=pipe) as process:
            try:
                output, errors = _read_both(process, seconds, most, wait)
            finally:
                ending = supervision.wait(process)
    if isinstance(ending, str):
        raise UserError(ending)
    if ending and len(output) <= most:
        last = clean((errors or output).decode("utf-8", "replace"))[-_ERROR_LENGTH:]
        how = f"failed with exit status {ending}"
        how = how if ending > 0 else f"was ended by signal {-ending}"
        raise UserError(f"it {how}{f': {last}' if last else ''}")
    return output.decode("utf-8", "replace")


def _read_both(
    process: "subprocess.Popen[bytes]", seconds: float, most: int, wait: Callable[[], None]
) -> tuple[bytearray, bytearray]:
    """Read both output streams until the supervisor, which holds them open, has ended."""
    assert process.stdout is not None
    assert process.stderr is not None
    read = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    output, errors = read.values()
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for stream in read:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and len(output) <= most:
            wait()
            if time.monotonic() > deadline:
                raise UserError(f"it took longer than {seconds:g} seconds")
            ready = selector.select(_POLL_SECONDS)
            for key, _ in ready:
                data = os.read(key.fd, _CHUNK)
                if not data:
                    selector.unregister(key.fd)
                elif len(read[key.fd]) <= most:
                    read[key.fd] += data
            if not ready and process.poll() is not None:  # its supervisor was killed
                break
    return output, errors


class LineProcess:
    """A running process that is asked and answers in lines of JSON.

    end_process: ends it, and waits for that.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", end_process: Callable[[], Any]) -> None:
        self._process, self._end_process = process, end_process
        self._owner = os.getpid()
        self._ended = False
        self._lines: Queue[bytes] = Queue(_AHEAD)
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def is_usable(self) -> bool:
        """Whether it runs and is a child of this process, not of one that forked."""
        return self._owner == os.getpid() and not self._ended and self._process.poll() is None

    def send(self, request: Any) -> None:
        """Raises LimitPassedError("end")."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # it has ended, or was ended
            raise LimitPassedError("end") from None

    def next(self, seconds: float, wait: Callable[[], None] = do_nothing) -> dict[str, Any]:
        """The next answer, an object; of a line that is none, an empty one.

        Raises LimitPassedError, and whatever `wait` raises.
        """
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
            try:
                answer = parse_json(line)
            except ValueError:
                answer = None
            return answer if isinstance(answer, dict) else {}

    def end(self) -> None:
        """End the process."""
        if self._ended or self._owner != os.getpid():
            return
        self._ended = True
        self._end_process()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(OSError):  # unsent data need not be sent
                stream.close()

    def _read(self) -> None:
        """Read the lines of the process as fast as the caller takes them; b"" after the last."""
        assert self._process.stdout is not None
        line = b"-"
        while line and not self._ended:
            try:
                line = self._process.stdout.readline(_LONGEST_LINE)
            except (OSError, ValueError):  # closed in the meantime
                line = b""
            while not self._ended:
                try:
                    self._lines.put(line, timeout=1.0)
                    break
                except Full:
                    continue


class LimitedProcess:
    """A process that answers requests by calling a function of a module; the first request starts
    it.

    module, function: an `Answer`, imported in the process. memory: bytes of address space, enforced
    on Linux only. network: whether it may open connections; see `confine`. After an exceeded limit,
    the next request starts a new process.
    """

    def __init__(self, module: str, function: str, *, memory: int, network: bool = False) -> None:
        self._command = python_command(__name__, "serve", module, function, memory, network)
        self._lock = threading.Lock()
        self._child: LineProcess | None = None

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
                self._child = child = self._start()
                weakref.finalize(self, child.end)
                child.next(_START_SECONDS)
            try:
                self._child.send([seconds, request])
                while "end" not in (answer := self._child.next(seconds, wait)):
                    if "sentence" in answer:
                        raise UserError(answer["sentence"])
                    if "item" not in answer:
                        raise LimitPassedError(answer.get("limit", "end"))
                    yield answer["item"]
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

    def _start(self) -> LineProcess:
        """It starts no process, so no supervisor is above it. Raises LimitPassedError."""
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                self._command,
                stdin=pipe,
                stdout=pipe,
                stderr=null,
                env=_variables(_WORKER_VARIABLES),
            )
        except OSError:
            raise LimitPassedError("end") from None

        def end() -> None:
            process.kill()
            process.wait()

        return LineProcess(process, end)


def serve(module: str, function: str, memory: int, network: bool) -> None:
    """Answer requests on standard input until it ends; a worker runs this."""
    logging.disable()
    answer: Answer = getattr(importlib.import_module(module), function)
    confine(memory, network=network)
    _write({"end": True})
    for line in sys.stdin.buffer:
        _write(_answered(answer, line))


def _answered(answer: Answer, line: bytes) -> dict[str, Any]:
    """Write the items of an answer; return how it ended."""
    try:
        seconds, request = parse_json(line)
        _end_after(seconds + _LATE_SECONDS)
        for item in answer(request):
            _end_after(0)
            _write({"item": item})
            _end_after(seconds + _LATE_SECONDS)
        return {"end": True}
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
