"""Leaving the program in a real terminal: while it loads, while it generates, by force.

Nothing here measures time: a program that waited for what runs would never end.
"""

import asyncio
import os
import re
import signal
import time

import pytest
from terminals import started
from textual.events import Key, Paste
from tool_server import add_lasting_server, ends

from chatapp.common.paths import database_path, tools_dir
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.database import StoreError
from chatapp.dialogue.tools.registry import find_tools
from chatapp.dialogue.tools.tool import allow_for_good


@pytest.fixture
def reply(terminal):
    """A function that gives the last message of the first chat."""
    stores = []

    def last():
        stores.append(Store(database_path()))
        return stores[-1].path(1)[-1]

    yield last
    for store in stores:
        store.close()


def test_while_the_model_loads(terminal):
    with started("loading") as program:
        program.wait_for("loading")
        program.send("Hello\r")
        program.wait_for("waiting for the model")
        program.send("\x11")
        assert program.wait() == 0
        assert "Traceback" not in program.output


def test_while_a_reply_is_generated(reply):
    with started("endless") as program:
        program.wait_for("ready")
        program.send("Hello\r")
        program.wait_for("word")
        program.send("\x11")
        assert program.wait() == 0
        assert "LEFT 0" in program.output
    assert reply().status == "stopped"
    assert reply().text.startswith("word")


def test_a_server_of_tools_while_a_model_does_not_listen(terminal):
    add_lasting_server(tools_dir())
    with started("stubborn") as program:
        program.wait_for("ready")
        program.send("/tools\r")
        program.wait_for("Off:")
        program.send("Hello\r")
        program.wait_for("three")
        program.send("\x11")
        assert program.wait() == 0
    assert ends(int((tools_dir() / "pid").read_text()))


HANGING = {
    # its mode, what is typed and what then shows, and what is abandoned
    "loading": ("loading", [], "loading the model"),
    "reply": ("stubborn", [("Hello\r", "three")], "a reply, kept as far as written"),
    "export": (
        "endless",
        [("Hello\r", "word"), ("/export chat.md\r", "writes a file")],
        "a reply, kept as far as written; /export chat.md",
    ),
    "documents": ("endless", [("/docs .\r", "Reading the documents")], "/docs ."),
    "tool": (
        "tool",
        [("/tools own\r", "Tools of this chat"), ("Hello\r", "running a tool")],
        "a reply, kept as far as written and its call of own",
    ),
    "learning": ("endless", [("/learn\r", "sleeps as")], "learning from feedback"),
    "download": (
        "endless",
        [
            ("\x1b[19~", "Filter"),
            ("smollm2", "To download"),
            ("\r", "Enter downloads"),
            ("\r", "Esc stops"),
        ],
        "the download of smollm2, which the next one continues",
    ),
    "screen": ("endless", [("Hello\r", "word"), ("\x1bOP", "")], "a reply, kept as far as written"),
}


@pytest.mark.parametrize("work", HANGING)
def test_what_hangs_is_abandoned_with_a_word(reply, tmp_path, monkeypatch, work):
    monkeypatch.chdir(tmp_path)
    mode, steps, abandoned = HANGING[work]
    if mode == "tool":
        add_sleeping_tool()
    with started(f"hanging {mode}") as program:
        program.wait_for("loading" if mode == "loading" else "ready")
        for keys, shows in steps:
            program.send(keys)
            program.wait_for(shows)
        program.send("\x11")
        assert program.wait() == 0
        assert f"Abandoned: {abandoned}." in program.output
        assert "Traceback" not in program.output
    if work == "learning":
        pid = re.search(r"sleeps as (\d+)", program.output)
        assert ends(int(pid[1]))
    if work in ("reply", "screen"):
        assert reply().status == "stopped"
        assert reply().text.startswith("one two three" if work == "reply" else "word")


def add_sleeping_tool():
    folder = tools_dir()
    folder.mkdir(parents=True)
    (folder / "own.toml").write_text(
        'name = "own"\ndescription = "Sleeps."\ncommand = ["sleep", "600"]\ntimeout = 500\n'
    )
    allow_for_good(find_tools().tools["own"].permission)


def test_killed_in_the_middle_of_a_reply(reply):
    with started("endless") as program:
        program.wait_for("ready")
        program.send("Hello\r")
        program.wait_for("word")
        while not reply().text:
            time.sleep(0.05)
        program.process.send_signal(signal.SIGKILL)
        assert program.wait() == -signal.SIGKILL
    assert reply().status == "partial"
    assert reply().text.startswith("word")
    with started("endless", "1") as program:
        program.wait_for("interrupted")
        program.wait_for("ready")
        program.send("\x11")
        assert program.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_told_to_end_in_the_middle_of_a_reply(reply, number):
    with started("endless") as program:
        program.wait_for("ready")
        program.send("Hello\r")
        program.wait_for("word")
        program.process.send_signal(number)
        assert program.wait() == 128 + number
        assert "Traceback" not in program.output
    assert reply().status == "stopped"
    assert reply().text.startswith("word")


def test_a_terminal_that_is_closed_in_the_middle_of_a_reply(reply):
    with started("slow terminal") as program:
        program.wait_for("ready")
        program.send("Hello\r")
        program.wait_for("word")
        program.vanish()
        assert program.process.wait(60) == 128 + signal.SIGHUP
    assert reply().status == "stopped"


def test_a_model_that_cannot_be_loaded(terminal):
    with started("failing") as program:
        program.wait_for("no such model")
        program.send("\x11")
        assert program.wait() == 0


async def test_a_store_that_fails_does_not_keep_a_program_without_a_terminal(open_app, monkeypatch):
    def full(patience):
        raise StoreError("the disk is full")

    statuses = []
    async with open_app() as driver:
        with monkeypatch.context() as patched:
            patched.setattr(os, "_exit", statuses.append)
            patched.setattr(driver.chat.conversation, "close", full)
            with pytest.raises(StoreError):
                driver.app.hang_up()
    assert statuses == [128 + signal.SIGHUP]


async def test_keys_that_wait_until_the_screens_are_closed(open_app):
    async with open_app() as driver:

        async def hold_up():
            while driver.app.screen_stack:
                await asyncio.sleep(0.01)

        driver.app.call_later(hold_up)
        for event in (Key("x", "x"), Key("f1", None), Paste("Hello")):
            driver.app.post_message(event)
    assert driver.app.failure is None
