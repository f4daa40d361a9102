"""How long the program takes to its first frame and to the first token of a reply.

Run it with `pytest -m benchmark -s tests/benchmarks/test_start.py` on a machine that does
nothing else. The program runs in a terminal of its own and is sent a message as soon as it has
drawn a frame; it notes its milestones itself (see chatapp/tui/platform/runtime.py). Medians count.
"""

import json
import os
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median

import pytest
from random_124m import gpt2_124m
from scale import check_finite, is_tiny

from chatapp.engine.backends.local import load_decoder
from chatapp.engine.files.model_files import ModelFiles

pytestmark = pytest.mark.benchmark

ROUNDS = 5
PATIENCE = 60.0
_SIZE = {"COLUMNS": "100", "LINES": "30", "TERM": "xterm-256color"}


def milestones(home: Path, model: str) -> dict[str, float]:
    """Start the program, send a message, wait for the first token, and end it."""
    noted = home / "milestones.jsonl"
    noted.unlink(missing_ok=True)
    ours, theirs = pty.openpty()
    environment = {**os.environ, **_SIZE, "CHATAPP_HOME": str(home), "_CHATAPP_TIMINGS": str(noted)}
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "chatapp", "--model", model],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
    )
    os.close(theirs)

    def drain() -> None:
        try:
            while os.read(ours, 65536):
                pass
        except OSError:
            pass  # the program has ended

    threading.Thread(target=drain, daemon=True).start()

    def until(event: str) -> dict[str, float]:
        patience = time.monotonic() + PATIENCE
        while time.monotonic() < patience:
            lines = noted.read_text().splitlines() if noted.exists() else []
            reached = {line["event"]: line["seconds"] - begun for line in map(json.loads, lines)}
            if event in reached:
                return reached
            time.sleep(0.01)
        raise TimeoutError(f"no {event} within {PATIENCE:.0f} s")

    try:
        until("first_frame")
        os.write(ours, b"Hello, who are you?\r")
        return until("first_token")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = str(gpt2_124m(tmp_path / "gpt2"))
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("CHATAPP_HOME", str(home))
    load_decoder(ModelFiles.read(Path(large)), precision="int8")  # leaves them on disk
    if is_tiny():
        check_finite(*milestones(home, large).values())
        return
    found: dict[str, list[dict[str, float]]] = {"bundled": [], large: []}
    for turn in range(ROUNDS + 1):
        for model, runs in found.items():
            run = milestones(home, model)
            if turn:  # the first turn fills the system's file cache
                runs.append(run)
    print()
    medians = {}
    for model, name in (("bundled", "bundled"), (large, "124M")):
        for event in ("first_frame", "model_ready", "first_token"):
            medians[name, event] = median(run[event] for run in found[model])
        print(f"{name:8}", {event: value for (of, event), value in medians.items() if of == name})
    assert medians["bundled", "first_frame"] <= 0.5
    assert medians["bundled", "first_token"] <= 3.5
    assert medians["124M", "first_token"] <= 4.5
