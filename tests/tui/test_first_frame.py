"""The screen is there before anything heavy is."""

import json
import subprocess
import sys

from terminals import started

from chatapp.common.paths import database_path
from chatapp.common.settings import Settings
from chatapp.dialogue.store import Store
from chatapp.tui.app import ChatApp, run

HEAVY = {"torch", "transformers", "tokenizers", "numpy", "pandas", "datasets", "peft", "pydantic"}
HEAVY |= {"jsonschema", "mcp"}
HEAVY |= {"aiohttp", "httpx", "httpx2", "huggingface_hub", "markdown_it", "textual_serve"}


def test_the_first_frame_imports_nothing_heavy():
    script = "import sys, chatapp.tui.app; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "textual" in done.stdout.split()
    assert not HEAVY & set(done.stdout.split())


def test_debugging_connects_textuals_console(monkeypatch):
    seen = []
    monkeypatch.setenv("TEXTUAL", "")
    monkeypatch.setattr(ChatApp, "run", lambda app, **options: seen.append(app.features))
    for value in ("", "1"):
        monkeypatch.setenv("CHATAPP_DEBUG", value)
        run(Settings(), store=Store(None))
    assert "devtools" not in seen[0]
    assert {"devtools", "debug"} <= seen[1]


async def test_milestones_are_written_where_the_environment_says(open_app, tmp_path, monkeypatch):
    target = tmp_path / "timings.jsonl"
    monkeypatch.setenv("_CHATAPP_TIMINGS", str(target))
    async with open_app() as driver:
        await driver.say("Hello")
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["first_frame", "model_ready", "first_token"]
    seconds = [line["seconds"] for line in lines]
    assert 0 < seconds[0] <= seconds[1] <= seconds[2]


def test_what_is_typed_before_it_is_not_lost(terminal):
    with started("endless") as program:
        program.wait_for("\x1b[?1049h")  # the terminal is taken over
        program.send("Hello early")
        program.wait_for("ready")
        program.send("\r")
        program.wait_for("word")
        program.send("\x11")
        assert program.wait() == 0
    store = Store(database_path())
    assert store.path(1)[0].text == "Hello early"
    store.close()
