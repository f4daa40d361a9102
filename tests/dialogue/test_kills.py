"""Kills at random moments of replies and imports: what was stored is whole."""

import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from chatapp.dialogue.store import Store

REPLIES = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from fakes import ScriptedModel
from chatapp.dialogue.chat import Chat
from chatapp.dialogue.session import Session
from chatapp.dialogue.store import Store
model = ScriptedModel(["word " * 40] * 1_000, delay=0.001)
session = Session(Chat(Store(Path(sys.argv[2]))), model)
print("ready", flush=True)
while True:
    list(session.say("Hi"))
"""
IMPORTS = """
import sys
from dataclasses import replace
from time import time_ns
from pathlib import Path
from chatapp.dialogue.importing import read_chats, store_chats
from chatapp.dialogue.store import Store
path = Path(sys.argv[2])
file = path.with_name("import.jsonl")
line = '{"messages": [{"role": "user", "content": "Hi %d"}]}\\n'
file.write_text("".join(line % number for number in range(300)))
store, chats = Store(path), read_chats(file).chats
print("ready", flush=True)
while True:
    number = time_ns()
    store_chats(store, [replace(chat, origin=f"{chat.origin} {number}") for chat in chats])
"""


def kill_while(program, path, seconds):
    """Run a program on a file of chats, and kill it some seconds after it is ready."""
    command = [sys.executable, "-c", program, str(Path(__file__).parent.parent), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        time.sleep(seconds)
        process.kill()


def check(path):
    """The number of messages of a file that has to be whole."""
    with closing(Store(path)) as store:
        store.add_message(store.create_chat(), None, "user", "It goes on.")
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []
        database.execute("INSERT INTO message_index (message_index) VALUES ('integrity-check')")
        ((miscounted,),) = database.execute(
            "SELECT count(*) FROM chats WHERE messages != "
            "(SELECT count(*) FROM messages WHERE chat_id = chats.id)"
        )
        assert miscounted == 0
        ((messages,),) = database.execute("SELECT count(*) FROM messages")
        return int(messages)


def kill(path, seed, count):
    dice = random.Random(seed)
    before = 0
    for _ in range(count):
        kill_while(dice.choice([REPLIES, IMPORTS]), path, dice.random() / 2)
        after = check(path)
        assert after > before  # nothing that was stored is lost
        before = after


def test_kills_leave_whole_chats(tmp_path):
    kill(tmp_path / "chats.db", 35, 3)


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_a_hundred_kills_leave_whole_chats(tmp_path):
    kill(tmp_path / "chats.db", 2026, 100)
