"""Leaving the program in a real terminal: while it loads, while it generates, by force.

Nothing here measures time: a program that waited for its threads would never end.
"""

import os
import signal
import time
from collections.abc import Iterator

import pytest
from terminals import started
from tool_server import add_lasting_server, ends
from tui_driver import OpenApp

from chatapp.common.paths import database_path, tools_dir
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.database import StoreError


@pytest.fixture
def reply(terminal: None) -> Iterator[object]:
    """A function that gives the last message of the first chat."""
    stores = []

    def last() -> object:
        stores.append(Store(database_path()))
        return stores[-1].path(1)[-1]

    yield last
    for store in stores:
        store.close()


def test_while_the_model_loads(terminal: None) -> None:
    with started("loading") as program:
        program.wait_for("loading")
        program.send("Hello\r")
        program.wait_for("waiting for the model")
        program.send("\x11")
        assert program.wait() == 0
        assert "Traceback" not in program.output


def test_while_a_reply_is_generated(reply) -> None:
    with started("endless") as program:
        program.wait_for("ready")
        program.send("Hello\r")
        program.wait_for("word")
        program.send("\x11")
        assert program.wait() == 0
        assert "LEFT 0" in program.output
    assert reply().status == "stopped"
    assert reply().text.startswith("word")


def test_while_a_model_does_not_listen(reply) -> None:
    with started("stubborn") as program:
        program.wait_for("ready")
        program.send("Hello\r")
        program.wait_for("three")
        program.send("\x11")
        assert program.wait() == 0
        assert "Traceback" not in program.output
    assert (reply().status, reply().text) == ("stopped", "one two three")


def test_a_server_of_tools_while_a_model_does_not_listen(terminal: None) -> None:
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


def test_killed_in_the_middle_of_a_reply(reply) -> None:
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
def test_told_to_end_in_the_middle_of_a_reply(reply, number: signal.Signals) -> None:
    with started("endless") as program:
        program.wait_for("ready")
        program.send("Hello\r")
        program.wait_for("word")
        program.process.send_signal(number)
        assert program.wait() == 128 + number
        assert "Traceback" not in program.output
    assert reply().status == "stopped"
    assert reply().text.startswith("word")


def test_a_terminal_that_is_closed_in_the_middle_of_a_reply(reply) -> None:
    with started("slow terminal") as program:
        program.wait_for("ready")
        program.send("Hello\r")
        program.wait_for("word")
        program.vanish()
        assert program.process.wait(60) == 128 + signal.SIGHUP
    assert reply().status == "stopped"


def test_a_model_that_cannot_be_loaded(terminal: None) -> None:
    with started("failing") as program:
        program.wait_for("no such model")
        program.send("\x11")
        assert program.wait() == 0


async def test_a_store_that_fails_does_not_keep_a_program_without_a_terminal(
    open_app: OpenApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(patience: float) -> None:
        raise StoreError("the disk is full")

    statuses: list[int] = []
    async with open_app() as driver:
        with monkeypatch.context() as patched:
            patched.setattr(os, "_exit", statuses.append)
            patched.setattr(driver.chat.conversation, "close", full)
            with pytest.raises(StoreError):
                driver.app.hang_up()
    assert statuses == [128 + signal.SIGHUP]
