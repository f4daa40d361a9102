"""The program in a real terminal, with a scripted model."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

HERE = Path(__file__).parent
PROGRAM = f"""
import os, sys, threading
from pathlib import Path
sys.path.insert(0, {str(HERE.parent)!r})
from fakes import ScriptedModel
from thinking_model import thinking_model
import chatapp.engine.models.loading
from chatapp.common.settings import Settings
from chatapp.tui.app import run
from chatapp.tui.platform import runtime

def halt(*_, **__):
    threading.Event().wait()

mode = sys.argv[1]
if mode.startswith("hanging"):
    import chatapp.engine.models.fetching, chatapp.dialogue.documents.search
    import chatapp.tui.chat.actions
    from chatapp.tui.chat import model_actions
    chatapp.engine.models.fetching.fetch = halt
    chatapp.dialogue.documents.search.Documents.renew = halt
    def write_for_ever(*_):
        print("writes a file", file=sys.__stderr__, flush=True)
        halt()
    chatapp.tui.chat.actions._write = write_for_ever
    chatapp.tui.app.ChatScreen.action_help = halt  # on the event loop
    sleeper = "echo sleeps as $$ >&2; exec sleep 600"
    model_actions.command = lambda model: ["sh", "-c", sleeper]
else:
    runtime.GRACE = 60  # so that a slow machine ends by itself

class Stubborn(ScriptedModel):
    "Says three words and then neither goes on nor stops."
    def generate(self, request):
        for count, event in enumerate(super().generate(request)):
            if count == 3:
                threading.Event().wait()
            yield event

def load_model(name, **_):
    if sys.argv[1].endswith("loading"):
        halt()
    if sys.argv[1] == "failing":
        raise ValueError("no such model")
    if sys.argv[1].endswith("stubborn"):
        return Stubborn(["one two three four"])
    if sys.argv[1].endswith("tool"):
        call = '<tool_call>{{"name": "own", "arguments": {{}}}}</tool_call>'
        return thinking_model(Path("model"), [call])
    return ScriptedModel(["word " * 10_000], delay=0.01)

if sys.argv[1] == "slow terminal":
    # As little as may wait for the terminal to take it.
    import textual.drivers._writer_thread
    textual.drivers._writer_thread.MAX_QUEUED_WRITES = 1

chatapp.engine.models.loading.load_model = load_model
code = run(Settings(), chat_id=int(sys.argv[2]) if sys.argv[2:] else None)
print("LEFT", code)
sys.exit(code)
"""


PATIENCE = 120
"""Seconds until a program is given up: many times what the slowest machine needs."""


class Terminal:
    """A program in a pseudo-terminal."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.descriptor = descriptor
        self.output = ""

    def send(self, keys: str) -> None:
        self.send_bytes(keys.encode())

    def send_bytes(self, keys: bytes) -> None:
        """Send bytes, which need not be UTF-8, as fast as the program takes them."""
        while keys:
            keys = keys[os.write(self.descriptor, keys) :]

    def wait_for(self, text: str) -> None:
        """Read until the program has written `text`."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.output:
            chunk = self._read(deadline)
            assert chunk, self.output[-2000:]  # it has ended
            self.output += chunk

    def read_waiting(self) -> None:
        """Read what the program has written so far."""
        while select.select([self.descriptor], [], [], 0)[0] and (chunk := self._chunk()):
            self.output += chunk

    def wait(self) -> int:
        """Read until the program has ended; returns its exit status."""
        deadline = time.monotonic() + PATIENCE
        while chunk := self._read(deadline):
            self.output += chunk
        return self.process.wait(PATIENCE)

    def vanish(self) -> None:
        """Close the terminal under the program."""
        os.close(self.descriptor)
        self.process.send_signal(signal.SIGHUP)

    def _read(self, deadline: float) -> str:
        while not select.select([self.descriptor], [], [], 1)[0] or time.monotonic() > deadline:
            if time.monotonic() > deadline:  # also when it never stops writing
                raise TimeoutError(self.output[-2000:])
        return self._chunk()

    def _chunk(self) -> str:
        try:
            return os.read(self.descriptor, 65536).decode(errors="replace")
        except OSError:  # what Linux says at the end
            return ""


@contextmanager
def started(*arguments: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "100", "LINES": "30"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        with suppress(OSError):  # the test has closed it
            os.close(ours)
