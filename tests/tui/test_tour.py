"""The tour is walked: every command of it, in order, with the files that it has one write."""

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Driver

import chatapp
import chatapp.cli
import chatapp.tui.app
import finetune.cli
from chatapp.settings import Settings
from chatapp.tui.app import ChatApp
from chatapp.tui.inspector.panel import Inspector

TOUR = Path(chatapp.__file__).with_name("TOUR.md")
PROGRAMS = {"chatapp": chatapp.cli.main, "finetune": finetune.cli.main}


def blocks() -> Iterator[tuple[str, str, str]]:
    """The language, the file name and the text of each fenced block."""
    text = TOUR.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w+) ?(\S*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield match[1], match[2], match[3]


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a block, each in its words. A quoted line break does not end one."""
    waiting = ""
    for line in text.splitlines():
        waiting += line
        try:
            yield shlex.split(waiting)
        except ValueError:  # a quotation goes on
            waiting += "\n"
        else:
            waiting = ""
    assert not waiting


async def chat(settings: Settings) -> str:
    """What the tour says to do in a chat, on the screen; returns the model's name there."""
    app = ChatApp(settings)
    async with app.run_test(size=(100, 30)) as pilot:
        driver = Driver(app, pilot)
        await driver.ready()
        await driver.press("enter")  # the first thing to try
        await driver.until(lambda: len(driver.texts) == 2)
        await driver.idle()
        await driver.press("f3", "1")
        await driver.until(lambda: "Who are you?" in driver.screen_text)
        await driver.press("2")
        await driver.until(lambda: "entropy" in driver.screen_text)
        await driver.press("escape")
        await driver.until(lambda: not driver.chat.query(Inspector))
        await driver.press("ctrl+up", "plus", "w")
        driver.prompt.text = "Arr, I be corrected, matey."
        await driver.press("enter")
        await driver.until(lambda: "good · corrected" in driver.screen_text)
        model = driver.status.model
    app.store.close()
    return model


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command of the tour; returns its exit status."""
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        PROGRAMS[words[0]]()
    return int(end.value.code or 0)


def test_the_tour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chats: list[str] = []

    def open_chat(settings: Settings, chat_id: int | None = None, **_: object) -> int:
        chats.append(asyncio.run(chat(settings)))
        return 0

    monkeypatch.setattr(chatapp.tui.app, "run", open_chat)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setenv("CHATAPP_MAX_TOKENS", "24")
    monkeypatch.chdir(tmp_path)
    for language, name, text in blocks():
        if name:
            Path(name).write_text(text, encoding="utf-8")
            continue
        assert language == "console"
        for words in commands(text):
            monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
            status = run(words, monkeypatch)
            said = capsys.readouterr()
            assert status == 0, f"{shlex.join(words)}: {said.err}"
            assert "Traceback" not in said.err

    assert chats == ["bundled", "pirate"]
    rows = [json.loads(line) for line in Path("corrections.jsonl").read_text().splitlines()]
    assert [row["messages"][-1]["content"] for row in rows] == ["Arr, I be corrected, matey."] * 2
    for folder in ("pirate", "corrected"):
        assert (tmp_path / folder / "model.safetensors").stat().st_size > 0
