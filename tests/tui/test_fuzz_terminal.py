"""Random bytes that a terminal sends: keys, pastes with marks and without, bytes that are no UTF-8,
halves of escape sequences, and other sizes. The program goes on, and ends when it is told to.
"""

import fcntl
import random
import struct
import termios
import time
from contextlib import suppress

import pytest
from terminals import PATIENCE, started

KEYS = [
    *(b"\x1b[A", b"\x1b[B", b"\x1b[C", b"\x1b[D", b"\x1b[5~", b"\x1b[6~", b"\x1b[H", b"\x1b[F"),
    *(b"\t", b"\x1b[Z", b"\r", b"\n", b"\x7f", b"\x1b", b" ", b"a", b"/", b"?", b"y", b"n"),
    *(
        b"\x1bOP",
        b"\x1bOQ",
        b"\x1bOR",
        b"\x1bOS",
        b"\x1b[15~",
        b"\x1b[19~",
        b"\x02",
        b"\x0e",
        b"\x0f",
    ),
    *(
        b"\x10",
        b"\x1b\r",
        b"\x1b[1;5A",
        b"\x1b[M !!",
        b"\x1b[<0;10;10M",
        b"\x1b[<64;5;5M",
        b"\x1b[I",
    ),
]
BAD = [
    b"\xff",
    b"\xc3",
    b"\xe2\x82",
    b"\xf0\x9f\x98",
    b"\xed\xa0\x80",
    b"\x80",
    b"\x00",
    b"\x9b31m",
]
HALVES = [
    b"\x1b[",
    b"\x1b]0;title",
    b"\x1bP",
    b"\x1b[200~",
    b"\x1b[201~",
    b"\x1b[?2026",
    b"\x1b[999999;",
]
TEXTS = [
    b"word " * 40,
    b"line\n" * 300,
    "\U0001f600\u202e\u0301".encode() * 50,
    b"[b]/quit {0}\x1b[2J",
]


def event(dice):
    """What a terminal sends at once."""
    kind = dice.random()
    if kind < 0.6:
        return dice.choice(KEYS)
    if kind < 0.75:
        return dice.choice(BAD)
    if kind < 0.8:
        return dice.choice(HALVES)
    if kind < 0.9:
        return b"\x1b[200~" + dice.choice(TEXTS) + dice.choice(BAD) + b"\x1b[201~"
    if kind < 0.95:
        return dice.choice(TEXTS) + dice.choice(BAD)
    return (
        dice.randbytes(12).replace(b"\x11", b"").replace(b"\x1a", b"")
    )  # it neither quits nor halts


def resize(program, dice):
    size = struct.pack("HHHH", dice.choice([4, 20, 30, 80]), dice.choice([10, 60, 100, 300]), 0, 0)
    fcntl.ioctl(program.descriptor, termios.TIOCSWINSZ, size)


def send_events(seed, count):
    dice = random.Random(seed)
    with started("endless") as program:
        program.wait_for("ready")
        for _ in range(count):
            if dice.random() < 0.02:
                resize(program, dice)
            program.send_bytes(event(dice))
            program.read_waiting()
            assert program.process.poll() is None, program.output[-2_000:]
            time.sleep(dice.choice([0, 0, 0.01]))
        deadline = time.monotonic() + PATIENCE
        while program.process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError):  # it has just ended
                program.send(
                    "\x1b[201~\x11"
                )  # the end of a sequence that was only begun, and Ctrl+Q
                program.read_waiting()
            time.sleep(0.5)
        assert program.wait() == 0
        assert "Traceback" not in program.output


def test_random_bytes_of_a_terminal(terminal):
    send_events("gate", 80)


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_two_thousand_random_events_of_a_terminal(terminal):
    for part in range(4):
        send_events(f"long {part}", 500)
