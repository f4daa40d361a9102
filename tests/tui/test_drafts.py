"""What is typed: bytes that are no text, and drafts that outlive the program."""

import signal
import time

import pytest
from terminals import started

from chatapp.common.paths import database_path, drafts_dir
from chatapp.dialogue.drafts import Drafts
from chatapp.dialogue.store import Store


def until_kept(text):
    while not any(path.read_text() == text for path in drafts_dir().glob("*.txt")):
        time.sleep(0.02)


def test_a_byte_that_is_no_utf_8(terminal):
    with started("endless") as program:
        program.wait_for("ready")
        program.send_bytes(b"before\xffafter\r")
        program.wait_for("word")
        program.send_bytes(b"\x1b[200~pasted\xc3(\xfe\x1b[201~")
        until_kept("pasted�(�")
        program.send("\x11")
        assert program.wait() == 0
    store = Store(database_path())
    assert store.path(1)[0].text == "before�after"
    store.close()


@pytest.mark.parametrize(
    ("mode", "keys", "shows"),
    [("endless", "half a thou", "ready"), ("loading", "half a thou\r", "waiting for the model")],
)
def test_a_draft_survives_a_kill(terminal, mode, keys, shows):
    with started(mode) as program:
        program.wait_for("ready" if mode == "endless" else "loading")
        program.send(keys)
        program.wait_for(shows)
        until_kept("half a thou")
        program.process.send_signal(signal.SIGKILL)
        program.wait()
    with started("endless") as program:
        program.wait_for("half a thou")
        program.send("\x11")
        assert program.wait() == 0


def test_a_sent_message_is_no_draft(terminal):
    with started("endless") as program:
        program.wait_for("ready")
        program.send("Hello\r")
        program.wait_for("word")
        while list(drafts_dir().glob("*.txt")):
            time.sleep(0.02)
        program.send("\x11")
        assert program.wait() == 0


def test_the_draft_of_a_program_that_runs_is_left_alone(terminal):
    with started("endless") as program:
        program.wait_for("ready")
        program.send("being written")
        until_kept("being written")
        assert Drafts(drafts_dir()).take_left() == ""
    assert Drafts(drafts_dir()).take_left() == "being written"


def test_a_long_text_without_marks_comes_whole(terminal):
    text = "".join(f"line {number} of a long text\n" for number in range(8000))
    with started("loading") as program:
        program.wait_for("loading")
        program.send_bytes(text.replace("\n", "\r").encode())
        until_kept(text)
        program.send("\x11")
        assert program.wait() == 0
