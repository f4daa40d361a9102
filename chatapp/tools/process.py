"""A command line as a tool: its arguments on standard input, its result on standard output.

Keep: no shell ever sees an argument, and when a call is over, for whatever reason, its process
and all that it has started in its group or below it are gone.
"""

import json
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from chatapp.common.userfiles import reason
from chatapp.tools.tool import Stopped, ToolError, bounded, clean

_POLL_SECONDS = 0.05
_CHUNK = 65_536
_ERROR_LENGTH = 500
_BYTES_A_CHARACTER = 4


@dataclass(frozen=True, slots=True)
class CommandLine:
    """command: the program and its arguments. folder: where it runs. timeout: in seconds.
    output_limit: of its output, in characters; there the program is ended."""

    command: tuple[str, ...]
    folder: Path
    timeout: float
    output_limit: int

    def run(self, arguments: Mapping[str, Any], cancel: threading.Event) -> str:
        """What the program prints, given the arguments as a JSON object.

        Raises ToolError when it cannot be started, fails or takes too long, and Stopped.
        """
        with tempfile.TemporaryFile() as given:  # a pipe would wait for a program that reads late
            given.write(json.dumps(arguments, ensure_ascii=False).encode("utf-8", "replace"))
            given.seek(0)
            process = self._start(given)
            with process:
                try:
                    output, errors, is_cut = self._read(process, cancel)
                finally:
                    end_all(process)
        if is_cut:
            return bounded(output, self.output_limit)
        if process.returncode:
            last = clean(errors or output)[-_ERROR_LENGTH:]
            raise ToolError(f"{_ending(process.returncode)}{f': {last}' if last else ''}")
        return output

    def _start(self, given: IO[bytes]) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(
                self.command,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.folder,
                start_new_session=True,  # a group of its own, which can be ended as a whole
            )
        except (OSError, ValueError) as error:
            raise ToolError(f"{self.command[0]} cannot be started: {reason(error)}") from None

    def _read(
        self, process: "subprocess.Popen[bytes]", cancel: threading.Event
    ) -> tuple[str, str, bool]:
        """What it prints on both of its streams until it ends, and whether that was cut."""
        assert process.stdout is not None
        assert process.stderr is not None
        most = _BYTES_A_CHARACTER * self.output_limit
        read = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
        output, errors = read.values()
        deadline = time.monotonic() + self.timeout
        with selectors.DefaultSelector() as selector:
            for stream in read:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
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
                if len(output) > most:
                    break
                # What it has left running may hold its streams open; that ends with it.
                if not ready and _has_ended(process):
                    break
        text = output.decode("utf-8", "replace")
        is_cut = len(text) > self.output_limit
        while not is_cut and not _has_ended(process):
            if cancel.wait(_POLL_SECONDS):
                raise Stopped
            if time.monotonic() > deadline:
                raise ToolError(f"it took longer than {self.timeout:g} seconds")
        return text, errors.decode("utf-8", "replace"), is_cut


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Whether a process has ended. Its number stays its own until `end_all` has used it."""
    return bool(os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))


def end_all(process: "subprocess.Popen[bytes]") -> None:
    """End a process that leads a group, and see to it that it is gone; see `end_tree`."""
    end_tree(process.pid)
    process.kill()
    process.wait()


def end_tree(pid: int) -> None:
    """End a process, the group that it leads, and all that it has started."""
    below: Sequence[psutil.Process] = ()
    with suppress(psutil.Error):
        below = psutil.Process(pid).children(recursive=True)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for child in below:
        with suppress(psutil.Error):
            child.kill()


def _ending(code: int) -> str:
    return f"it was ended by signal {-code}" if code < 0 else f"it failed with exit status {code}"
