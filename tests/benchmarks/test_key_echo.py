"""Seconds from a key to its letter in a terminal, while a reply streams into a long chat.

The reply is laid out as Markdown. Run it with
`SMOLLM2_GGUF=FILE pytest -m benchmark -s tests/benchmarks/test_key_echo.py` on a machine that does
nothing else. The program runs in a terminal of its own. Each key is a letter that is nowhere else,
and its time ends when the program has written it to the terminal.
"""

import json
import os
import pty
import select
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from statistics import median, quantiles

import pytest
from rivals import SMOLLM2
from scale import check_finite, is_tiny, sized

from chatapp.common.paths import database_path
from chatapp.dialogue.store import Store

pytestmark = pytest.mark.benchmark

MESSAGES, KEYS, TOKENS = sized((500, 40, 1500), (4, 4, 200))
PAUSE = sized(0.25, 0.01)
"""Seconds between two keys."""
PATIENCE = 300.0
LETTERS = [chr(code) for code in chain(range(0x3B1, 0x3C2), range(0x430, 0x450))]
REPLY = "**Step {n}.** Use `cut`:\n\n- wash *it*\n- cut it"
LIST = "\n".join(f"- **Step {n}.** Use `cut -{n}` for *it*." for n in range(20))
"""The last reply, which the model goes on with."""


def long_chat() -> None:
    """Store a chat of short messages, whose replies are Markdown."""
    store = Store(database_path())
    chat_id = store.create_chat(title="Long", model="bundled")
    store.set_markdown(chat_id, True)
    parent = None
    for n in range(MESSAGES):
        role, text = ("assistant", REPLY.format(n=n)) if n % 2 else ("user", f"Step {n}?")
        text = LIST if n == MESSAGES - 1 else text
        parent = store.add_message(chat_id, parent, role, text).id
    store.close()


class Program:
    """The program with the last chat, in a terminal of 100 columns and 30 rows."""

    def __init__(self, model: str, noted: Path) -> None:
        ours, theirs = pty.openpty()
        size = {"COLUMNS": "100", "LINES": "30", "TERM": "xterm-256color"}
        sampling = {"TEMPERATURE": 0, "MAX_REPEATS": 0, "MAX_TOKENS": TOKENS}
        settings = {f"CHATAPP_{name}": str(value) for name, value in sampling.items()}
        self._noted, self._terminal = noted, ours
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chatapp", "-c", "--model", model],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, **size, **settings, "_CHATAPP_TIMINGS": str(noted)},
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

    def wait_for(self, event: str) -> None:
        """Read until a milestone; see chatapp/tui/platform/runtime.py."""
        end = time.monotonic() + PATIENCE
        while not (self._noted.exists() and event in self._noted.read_text()):
            assert time.monotonic() < end, event
            self.read(0.02)

    def echo(self, letter: str) -> float:
        """Seconds from the key to the letter."""
        start = time.perf_counter()
        self.send(letter)
        assert letter.encode() in self.read(PATIENCE, letter)
        return time.perf_counter() - start


def test_keys_while_a_reply_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    if not (is_tiny() or SMOLLM2.is_file()):
        pytest.skip("SMOLLM2_GGUF names no file")
    model = "bundled" if is_tiny() else str(SMOLLM2)
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    long_chat()
    program = Program(model, tmp_path / "milestones.jsonl")
    try:
        program.wait_for("model_ready")
        program.send("Write the next 100 steps of this list.\r")
        program.wait_for("first_token")
        echoes = []
        for letter in LETTERS[:KEYS]:
            program.read(PAUSE)
            echoes.append(program.echo(letter))
        program.send("\x1b")
        program.read(1)
    finally:
        program.close()
    store = Store(database_path())
    generation = store.generations(1)[-1]
    has_list = "\n- **" in store.message(generation.message_id).text
    store.close()
    figures = {
        "model": Path(model).name,
        "keys": len(echoes),
        "median ms": round(1000 * median(echoes), 1),
        "nine of ten below ms": round(1000 * quantiles(echoes, n=10)[-1], 1),
        "longest ms": round(1000 * max(echoes), 1),
        "prompt tokens": generation.prompt_tokens,
        "reply tokens": generation.reply_tokens,
        "has a list": has_list,
        "ended by": generation.reason,
    }
    with capsys.disabled():
        print("\n" + json.dumps(figures))
    check_finite(*echoes)
    if not is_tiny():
        assert generation.reason == "cancelled"  # the reply was still being written
        assert has_list
        assert median(echoes) < 0.05
