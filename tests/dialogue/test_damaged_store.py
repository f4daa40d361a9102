"""A damaged file of chats is one sentence and stays unchanged; its daily copy takes its place."""

import os
import random
import shutil
import sqlite3
import time
from contextlib import closing, suppress

import pytest

from chatapp.dialogue.store import Store
from chatapp.dialogue.store.backup import back_up, backups, restore
from chatapp.dialogue.store.database import APPLICATION_ID, StoreError, is_sound, log_of
from chatapp.dialogue.store.migrations import MIGRATIONS

CHATS, MESSAGES = 12, 8
LONG = "a long reply " * 700
"""Longer than a page."""


def fill(path, word="walrus"):
    with closing(Store(path)) as store:
        for number in range(CHATS):
            chat_id = store.create_chat(title=f"{word} {number}", system="Be brief.")
            parent = None
            for place in range(MESSAGES):
                text = LONG if place == 1 else f"{word} {place}"
                role = "assistant" if place % 2 else "user"
                parent = store.add_message(chat_id, parent, role, text).id
        store.set_thumb(2, 1)


@pytest.fixture
def path(tmp_path):
    fill(tmp_path / "chats.db")
    return tmp_path / "chats.db"


def use(path):
    """Everything that reads or writes a file of chats. Raises StoreError alone."""
    with closing(Store(path)) as store:
        for work in (
            lambda: [store.path(chat.id) for chat in store.chats(limit=100)],
            lambda: store.chats(matching="walrus"),
            lambda: store.search("walrus"),
            lambda: store.generations(1),
            lambda: store.feedback(1),
            lambda: store.add_message(1, None, "user", "Hello"),
            lambda: store.update_message(3, "else", "complete"),
            lambda: store.delete_chat(2),
        ):
            with suppress(StoreError):
                work()


def texts(path):
    """What a sound file has: the messages of each chat by its title."""
    with closing(Store(path)) as store:
        return {
            chat.title: [message.text for message in store.path(chat.id)]
            for chat in store.chats(limit=100)
        }


def damaged(data, seed):
    """The file cut off, and with pages and bytes of it overwritten."""
    dice = random.Random(seed)
    for _ in range(8):
        yield data[: dice.randrange(len(data))]
        pages, scattered = bytearray(data), bytearray(data)
        for _ in range(dice.choice([1, 3, 9])):
            start = 4096 * dice.randrange(len(data) // 4096)
            pages[start : start + 4096] = dice.randbytes(4096)
        for _ in range(40):
            scattered[dice.randrange(len(data))] = dice.randrange(256)
        yield bytes(pages)
        yield bytes(scattered)


def test_whatever_is_damaged_is_a_sentence_and_is_never_backed_up(path, tmp_path):
    data = path.read_bytes()
    for number, content in enumerate(damaged(data, seed=7)):
        folder = tmp_path / str(number)
        folder.mkdir()
        broken = folder / "chats.db"
        broken.write_bytes(content)
        made = back_up(broken, every=0)
        assert made is None or is_sound(made)
        assert broken.read_bytes() == content
        with suppress(StoreError):
            use(broken)


def overwrite(path, start, content):
    with path.open("r+b") as file:
        file.seek(start)
        file.write(content)


def test_a_damaged_file_is_replaced_by_its_copy_and_kept(path, tmp_path):
    expected, copy = texts(path), back_up(path)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert copy.parent.stat().st_mode & 0o777 == 0o700
    overwrite(path, 0, b"\xff" * 100)
    broken = path.read_bytes()
    with pytest.raises(StoreError, match=r"is damaged .*; it was left unchanged; `chatapp history"):
        Store(path)
    used, aside = restore(path)
    assert (used, aside is not None and aside.read_bytes()) == (copy, broken)
    assert texts(path) == expected
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_a_copy_is_made_once_a_day_and_three_are_kept(path):
    made = back_up(path)
    assert made is not None
    assert back_up(path) is None, "there is one of today"
    os.utime(made, (2**33, 2**33))
    assert back_up(path) is not None, "that one is of a clock that jumped"
    for number in range(4):
        for days, file in enumerate(backups(path), 1):
            os.utime(file, (0, time.time() - 100_000 * days))
        made.replace(made.with_name(f"chats-2020-01-0{number + 1}-000000.db"))
        made = back_up(path)
        assert made is not None
    assert len(backups(path)) == 3
    assert backups(path)[0] == made


def test_copies_of_a_clock_that_was_ahead_are_neither_kept_nor_taken_for_the_newest(path):
    for year in (2097, 2098, 2099):
        ahead = path.parent / "backups" / f"chats-{year}-01-01-000000.db"
        made = back_up(path, every=0)
        assert made is not None
        os.utime(made.replace(ahead), (2**32, 2**32))
    made = back_up(path)
    assert made is not None
    assert made.exists()
    assert backups(path)[0] == made
    assert restore(path)[0] == made


def test_a_copy_holds_what_is_in_the_log_while_the_store_is_open(path):
    with closing(Store(path)) as store:
        store.create_chat(title="In the log")
        copy = back_up(path)
    assert copy is not None
    assert "In the log" in texts(copy)


def test_what_is_deleted_for_good_is_in_no_copy(path):
    assert back_up(path) is not None
    with closing(Store(path)) as store:
        store.delete_chat(2)
    assert backups(path) == []


def test_a_copy_that_is_no_file_of_chats_replaces_nothing(path, tmp_path):
    before = path.read_bytes()
    (tmp_path / "text.db").write_bytes(b"not a database")
    (tmp_path / "torn.db").write_bytes(before[:5000])
    with closing(sqlite3.connect(tmp_path / "foreign.db")) as connection:
        connection.execute("CREATE TABLE notes (a)")
    for name in ("text.db", "torn.db", "foreign.db", "nosuch.db"):
        with pytest.raises(StoreError, match=r"sound file of chats|belongs to another program"):
            restore(path, tmp_path / name)
    with pytest.raises(StoreError, match="has no copy"):
        restore(path)
    assert path.read_bytes() == before


def test_the_log_of_another_file_is_not_written_into_this_one(path, tmp_path):
    content = path.read_bytes()
    other = tmp_path / "other.db"
    fill(other, "tusk")
    fill(other, "seal")
    with closing(Store(other)) as store:
        for _ in range(9):
            store.add_message(store.create_chat(), None, "user", LONG)
        shutil.copy(log_of(other), log_of(path))
    with pytest.raises(StoreError, match=r"chats\.db-wal does not fit it"):
        Store(path)
    assert path.read_bytes() == content


def make_folder(path):
    path.mkdir()


def make_pipe(path):
    os.mkfifo(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("make", [make_folder, make_pipe])
def test_what_is_no_file_is_refused(make, tmp_path):
    make(tmp_path / "chats.db")
    with pytest.raises(StoreError, match="is not a regular file"):
        Store(tmp_path / "chats.db")
    assert back_up(tmp_path / "chats.db") is None


def test_tables_of_another_shape_are_damage(tmp_path):
    path = tmp_path / "chats.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE chats (a)")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.commit()
    with closing(Store(path)) as store, pytest.raises(StoreError, match="is damaged"):
        store.chats()


@pytest.mark.parametrize(
    "column", ["sources = '[1]'", "calls = '{'", "text = CAST(x'61ff62' AS TEXT)"]
)
def test_a_value_that_cannot_be_read_is_a_sentence(column, path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE messages SET {column} WHERE id = 2")
        connection.commit()
    with closing(Store(path)) as store:
        try:
            found = store.message(2)
        except StoreError as error:
            found = str(error)
    assert "a value cannot be read" in str(found) or "a\ufffdb" in str(found)


def test_an_empty_file_is_a_new_one(tmp_path):
    (tmp_path / "chats.db").touch()
    with closing(Store(tmp_path / "chats.db")) as store:
        assert store.chats() == []
