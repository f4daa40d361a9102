"""The chat below a shell's prompt, in a real terminal."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from completions_server import CompletionsServer, said
from terminals import Terminal

ROOT = Path(__file__).parent.parent.parent
ALTERNATE_SCREEN = "\x1b[?1049h"


@pytest.fixture
def server():
    with CompletionsServer().running() as server:
        server.models = [{"id": "tiny", "max_model_len": 512}]
        server.stream = said(" The", " sea", " is", " wide.")
        yield server


def start(descriptor, *arguments, errors=None):
    return subprocess.Popen(
        [sys.executable, "-m", "chatapp", *arguments],
        stdin=descriptor,
        stdout=descriptor,
        stderr=descriptor if errors is None else errors,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", "LINES": "40"},
        start_new_session=True,
    )


def test_what_stands_above_is_kept(terminal, server):
    ours, theirs = pty.openpty()
    process = start(theirs, "--inline", "--model", server.url)
    os.close(theirs)
    program = Terminal(process, ours)
    try:
        program.wait_for("ready")
        program.send("Tell me about the sea.\r")
        program.wait_for("wide.")
        program.send("\x11")
        assert program.wait() == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert ALTERNATE_SCREEN not in program.output
    assert "Traceback" not in program.output


def test_it_is_drawn_on_standard_error(terminal):
    ours, theirs = pty.openpty()
    process = start(theirs, "--inline", errors=subprocess.PIPE)
    os.close(theirs)
    _, errors = process.communicate(timeout=120)
    os.close(ours)
    assert process.returncode == 2
    assert errors.decode().count("\n") == 1
    assert "--inline draws on standard error" in errors.decode()
