"""How long the screen makes somebody wait: from the start, and from a key while a reply streams.

The program runs in a terminal of its own and notes its milestones itself (chatapp/tui/platform).
"""

import json
import os
import pty
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles

from measure import ROOT, Table, models, sized
from speed import spread

from chatapp.dialogue.store import Store

PATIENCE = 300.0
LETTERS = [chr(code) for code in (*range(0x3B1, 0x3C2), *range(0x430, 0x450))]
"""Letters that are nowhere else on the screen."""
LIST = "\n".join(f"- **Step {n}.** Use `cut -{n}` for *it*." for n in range(20))
"""The last reply, which the model goes on with."""


class Program:
    """The program in a terminal of 100 columns and 30 rows; to be closed."""

    def __init__(self, home: Path, *arguments: str, **settings: object) -> None:
        self._noted = home / "milestones.jsonl"
        self._noted.unlink(missing_ok=True)
        self._terminal, theirs = pty.openpty()
        environment = {
            **os.environ,
            **{"COLUMNS": "100", "LINES": "30", "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)},
            **{f"CHATAPP_{name}": str(value) for name, value in settings.items()},
            **{"CHATAPP_HOME": str(home), "_CHATAPP_TIMINGS": str(self._noted)},
        }
        self.begun = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chatapp", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
        )
        os.close(theirs)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def send(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def read(self, seconds: float, until: str | None = None) -> bytes:
        """What is written within some seconds, or until a text is."""
        written, end = b"", time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self._terminal], [], [], left)[0]:
                written += os.read(self._terminal, 65536)
            if until is not None and until.encode() in written:
                break
        return written

    def wait_for(self, event: str) -> dict[str, float]:
        """The seconds of all milestones once one is reached."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            lines = self._noted.read_text().splitlines() if self._noted.exists() else []
            reached = {
                line["event"]: line["seconds"] - self.begun for line in map(json.loads, lines)
            }
            if event in reached:
                return reached
            self.read(0.01)
        raise TimeoutError(event)

    def echo(self, letter: str) -> float:
        """Seconds from the key until its letter is written."""
        start = time.perf_counter()
        self.send(letter)
        assert letter.encode() in self.read(PATIENCE, letter)
        return time.perf_counter() - start


def start_table() -> Table:
    """From the start of the process to the first frame, the loaded model and the first token."""
    events, rounds, rows = ("first_frame", "model_ready", "first_token"), sized(5, 1), []
    for name, source in models().items():
        with tempfile.TemporaryDirectory() as home:
            runs = []
            for _ in range(sized(rounds + 1, 1)):
                program = Program(Path(home), "--model", source)
                try:
                    program.wait_for("first_frame")
                    program.send("Hello, who are you?\r")
                    runs.append(program.wait_for("first_token"))
                finally:
                    program.close()
        runs = runs[-rounds:]  # the first run fills the system's file cache
        rows.append((name, *(spread([run[event] for run in runs], " s") for event in events)))
    count = f"medians of n = {rounds} starts (least–most) with files in the system's cache"
    return Table(("", "first frame", "model ready", "first token"), rows, count)


def keys_table() -> Table:
    """From a key to its letter while a reply is laid out as Markdown in a long chat."""
    messages, keys = sized((500, 40), (4, 4))
    rows = []
    for name, source in models().items():
        with tempfile.TemporaryDirectory() as home:
            _store_long_chat(Path(home), messages)
            options = {"TEMPERATURE": 0, "MAX_REPEATS": 0, "MAX_TOKENS": sized(1500, 200)}
            program = Program(Path(home), "-c", "--model", source, **options)
            try:
                program.wait_for("model_ready")
                program.send("Write the next 100 steps of this list.\r")
                program.wait_for("first_token")
                echoes = []
                for letter in LETTERS[:keys]:
                    program.read(sized(0.25, 0.01))
                    echoes.append(1000 * program.echo(letter))
            finally:
                program.close()
        nine = quantiles(echoes, n=10)[-1]
        rows.append((name, spread(echoes, " ms"), f"{nine:.1f} ms"))
    count = f"n = {keys} keys into a chat of {messages} messages; median (least–most)"
    return Table(("while this model writes", "key to letter", "nine of ten below"), rows, count)


def _store_long_chat(home: Path, messages: int) -> None:
    store = Store(home / "chats.db")
    chat_id = store.create_chat(title="Long", model="bundled")
    store.set_markdown(chat_id, True)
    parent = None
    for n in range(messages):
        reply = LIST if n == messages - 1 else f"**Step {n}.** Use `cut`:\n\n- wash *it*\n- cut it"
        role, text = ("assistant", reply) if n % 2 else ("user", f"Step {n}?")
        parent = store.add_message(chat_id, parent, role, text).id
    store.close()
