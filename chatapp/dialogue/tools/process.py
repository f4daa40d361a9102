"""Processes of tools: their environment, and how they end.

Invariant: no shell ever sees an argument; a program gets only the environment variables that its
tool's file lists; when a call is over, for whatever reason, all processes that it started have
ended.
"""

import hashlib
import json
import os
import secrets
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from chatapp.common.userfiles import reason
from chatapp.dialogue.tools.tool import Stopped, ToolError, bounded, clean

_SUPERVISOR = Path(__file__).parent / "supervisor.py"
_MARK = "CHATAPP_CALL"
"""The variable that identifies a program whose supervisor was killed."""

_ALWAYS_GIVEN = ("PATH", "HOME", "LANG")

_POLL_SECONDS = 0.05
_ENDING_SECONDS = 10.0
_CHUNK = 65_536
_ERROR_LENGTH = 500
_BYTES_A_CHARACTER = 4


class Supervision:
    """One program that runs under a supervisor; see supervisor.py.

    theirs: the supervisor's end of the socket, to be passed to it and closed here. Raises ToolError
    where the system has no groups of processes: nothing there would end what a program starts.
    """

    def __init__(self) -> None:
        if not hasattr(os, "killpg"):  # Windows
            raise ToolError("programs of tools, servers and rewards run on Linux and macOS alone")
        self._ours, self.theirs = socket.socketpair()
        self._mark = secrets.token_hex(8)

    def command(self, program: Sequence[str]) -> list[str]:
        """The command line that runs a program under the supervisor."""
        # -E: ignores Python's environment variables; -P: imports no file from the supervisor's
        # folder.
        start = [sys.executable, "-E", "-P", str(_SUPERVISOR), str(self.theirs.fileno())]
        return [*start, *program]

    def environment(
        self, names: Sequence[str], variables: Iterable[tuple[str, str]] = ()
    ) -> dict[str, str]:
        """The variables of a program: PATH, HOME, LANG, those of these names that are set, and
        others with their values.
        """
        known = {name: os.environ[name] for name in (*_ALWAYS_GIVEN, *names) if name in os.environ}
        return known | dict(variables) | {_MARK: self._mark}

    def end(self) -> None:
        """End the program and all processes it started. Does not wait."""
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_WR)

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
        strays = True
        while strays:
            strays = False
            for process in psutil.process_iter():
                with suppress(psutil.Error, OSError):
                    if process.environ().get(_MARK) == self._mark:
                        process.kill()
                        strays = True


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
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:
        return "cannot be read"


@dataclass(frozen=True, slots=True)
class CommandLine:
    """timeout: in seconds. output_limit: characters of output, after which the program is ended."""

    program: Program
    timeout: float
    output_limit: int

    def definition(self) -> dict[str, Any]:
        """See `Program.definition`."""
        limits = {"timeout": self.timeout, "output_limit": self.output_limit}
        return self.program.definition() | limits

    def run(self, arguments: Mapping[str, Any], cancel: threading.Event) -> str:
        """Run the program with the arguments as a JSON object; return its output.

        Raises ToolError when it cannot be started, fails or takes too long, and Stopped.
        """
        supervision = Supervision()
        with tempfile.TemporaryFile() as stdin:  # a pipe would wait for a program that reads late
            stdin.write(json.dumps(arguments, ensure_ascii=False).encode("utf-8", "replace"))
            stdin.seek(0)
            with self._start(stdin, supervision) as process:
                try:
                    output, errors, is_cut = self._read(process, cancel)
                finally:
                    ending = end_program(process, supervision)
        if is_cut:
            return bounded(output, self.output_limit)
        if isinstance(ending, str):
            raise ToolError(ending)
        if ending:
            last = clean(errors or output)[-_ERROR_LENGTH:]
            raise ToolError(f"{_in_words(ending)}{f': {last}' if last else ''}")
        return output

    def _start(self, stdin: IO[bytes], supervision: Supervision) -> "subprocess.Popen[bytes]":
        try:
            with supervision.theirs as theirs:
                return subprocess.Popen(
                    supervision.command(self.program.command),
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=self.program.folder,
                    env=supervision.environment(self.program.environment, self.program.variables),
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl+C is for the chat
                )
        except (OSError, ValueError) as error:
            raise ToolError(
                f"{self.program.command[0]} cannot be started: {reason(error)}"
            ) from None

    def _read(
        self, process: "subprocess.Popen[bytes]", cancel: threading.Event
    ) -> tuple[str, str, bool]:
        """Read both output streams until the supervisor, which holds them open, has ended; also
        return whether the output was cut.
        """
        assert process.stdout is not None
        assert process.stderr is not None
        most = _BYTES_A_CHARACTER * self.output_limit
        read = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
        output, errors = read.values()
        deadline = time.monotonic() + self.timeout
        with selectors.DefaultSelector() as selector:
            for stream in read:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map() and len(output) <= most:
                if cancel.is_set():
                    raise Stopped
                if time.monotonic() > deadline:
                    raise ToolError(f"it took longer than {self.timeout:g} seconds")
                ready = selector.select(_POLL_SECONDS)
                for key, _ in ready:
                    data = os.read(key.fd, _CHUNK)
                    if not data:
                        selector.unregister(key.fd)
                    elif len(read[key.fd]) <= most:
                        read[key.fd] += data
                if not ready and process.poll() is not None:  # its supervisor was killed
                    break
        text = output.decode("utf-8", "replace")
        return text, errors.decode("utf-8", "replace"), len(text) > self.output_limit


def end_program(process: "subprocess.Popen[bytes]", supervision: Supervision) -> int | str:
    """End a program and all processes it started; see `Supervision.ending`."""
    supervision.end()
    try:
        process.wait(_ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return supervision.ending()


def _in_words(code: int) -> str:
    return f"it was ended by signal {-code}" if code < 0 else f"it failed with exit status {code}"
