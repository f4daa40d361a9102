"""Walks chapters of the tour: writes their files, runs their commands, plays in their chats."""

import asyncio
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from tui_driver import Driver

import chatapp
import chatapp.cli
import chatapp.tui.app
import finetune.cli
from chatapp.common.settings import Settings
from chatapp.tui.app import ChatApp

TOUR = Path(chatapp.__file__).parent / "docs" / "tour.md"
PROGRAMS = {"chatapp": chatapp.cli.main, "finetune": finetune.cli.main}
_FRACTION = re.compile(r"\d+\.\d+")
_COLORS = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
_PARTS = re.compile(
    r"^```(?P<language>\w+) ?(?P<name>\S*)\n(?P<text>.*?)^```$|^## (?P<chapter>\d)\. ",
    re.MULTILINE | re.DOTALL,
)


class Said(NamedTuple):
    """What a command has printed: its answer, and all else."""

    out: str
    err: str


Walk = dict[str, Said]
"""What each command has said so far."""

Outcome = Callable[[Said, Walk], None]
Scene = Callable[[Driver], Awaitable[None]]


class Outcomes(dict[str, Outcome]):
    """What has to be so after each command."""

    def after(self, *commands: str) -> Callable[[Outcome], Outcome]:
        """Names the commands after which something has to be so."""

        def kept(outcome: Outcome) -> Outcome:
            self.update(dict.fromkeys(commands, outcome))
            return outcome

        return kept


def blocks(chapters: str) -> Iterator[tuple[str, str, str]]:
    """The language, the file name and the text of each fenced block of some chapters, and of each
    file that an earlier one has one write.
    """
    text = TOUR.read_text(encoding="utf-8")
    chapter = ""
    for match in _PARTS.finditer(text):
        if match["chapter"]:
            chapter = match["chapter"]
        elif chapter in chapters or (match["name"] and chapter < chapters):
            yield match["language"], match["name"], match["text"]


def commands(text: str) -> Iterator[str]:
    """The commands of a block. A quoted line break does not end one."""
    waiting = ""
    for line in text.splitlines():
        waiting += line
        try:
            shlex.split(waiting)
        except ValueError:  # a quotation goes on
            waiting += "\n"
        else:
            yield waiting
            waiting = ""
    assert not waiting


def printed(text: str, said: Said) -> None:
    """Asserts that a command has printed the lines that the tour shows of it, in this order.

    Fractions may differ a little: no two kinds of CPU add in the same order.
    """
    lines = iter(f"{said.out}{said.err}".splitlines())
    for line in text.splitlines():
        words, fractions = in_words(line)
        for printed_words, printed_fractions in map(in_words, lines):
            if words in printed_words and len(fractions) == len(printed_fractions):
                assert fractions == pytest.approx(printed_fractions, abs=0.01, rel=0.02), line
                break
        else:
            raise AssertionError(f"not printed: {line}")


def in_words(line: str) -> tuple[str, list[float]]:
    """A line with a mark in place of each fraction, and the fractions."""
    return _FRACTION.sub("#.#", line.rstrip()), [float(one) for one in _FRACTION.findall(line)]


async def play(settings: Settings, scene: Scene) -> None:
    sampling = replace(settings.sampling, seed=1)
    app = ChatApp(replace(settings, sampling=sampling))
    async with app.run_test(size=(100, 40)) as pilot:
        driver = Driver(app, pilot)
        await driver.ready()
        await scene(driver)
    app.store.close()


def walk_chapters(
    chapters: str,
    outcomes: Outcomes,
    scenes: Mapping[str, Scene | None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Does in this folder what chapters say, and asserts the outcome of each command.

    scenes: what is done in the chat that a command opens; None opens none.
    """
    walk: Walk = {}
    command = ""

    def open_chat(settings: Settings, chat_id: int | None = None, **_: object) -> int:
        if (scene := scenes[command]) is not None:
            asyncio.run(play(settings, scene))
        return 0

    # The figures are those of the README's installation, which has no encoder.
    monkeypatch.setattr("chatapp.tasks.selection.encoders.minilm_folder", lambda: None)
    monkeypatch.setattr(chatapp.tui.app, "run", open_chat)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    for language, name, text in blocks(chapters):
        if name:
            Path(name).write_text(text, encoding="utf-8")
            continue
        if language == "text":
            printed(text, walk[command])
            continue
        assert language == "console"
        for command in commands(text):
            monkeypatch.setattr(sys, "argv", shlex.split(command))
            monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
            with pytest.raises(SystemExit) as end:
                PROGRAMS[sys.argv[0]]()
            walk[command] = Said(*(_COLORS.sub("", text) for text in capsys.readouterr()))
            assert not end.value.code, f"{command}: {walk[command].err}"
            if command not in scenes:
                outcomes[command](walk[command], {k: v for k, v in walk.items() if k != command})


def commands_in(chapters: str) -> set[str]:
    """Every command of some chapters."""
    return {
        command
        for language, _, text in blocks(chapters)
        if language == "console"
        for command in commands(text)
    }
