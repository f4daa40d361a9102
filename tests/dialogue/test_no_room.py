"""Chats on a disk that is full or read-only: they are read, shown and exported, and deleted where
that makes room."""

import os
import shutil
import sqlite3
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from chatapp.dialogue.store import Store
from chatapp.dialogue.store.database import StoreError

LONG = "word " * 20_000
FULL = "cannot be written: the disk is full; `chatapp history delete ID` frees space"


@pytest.fixture
def disk(tmp_path):
    """A disk of 1 MB."""
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this system allows no mount")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def path(disk):
    """Of two chats on it."""
    path = disk / "chats.db"
    store = Store(path)
    for title in ("short", "long"):
        id = store.create_chat(title=title)
        store.add_message(id, None, "user", "Hello" if title == "short" else LONG)
    store.close()
    return path


def fill(disk):
    with (disk / "filling").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def read(store):
    return [store.path(chat.id)[0].text for chat in store.chats()]


def test_on_a_full_disk_chats_are_read_and_deleted(disk, path):
    fill(disk)
    store = Store(path)
    assert read(store) == [LONG, "Hello"]
    assert [hit.chat_id for hit in store.search("Hello")] == [1]
    message = f"{path}: {FULL}"
    with pytest.raises(StoreError) as error:
        store.rename_chat(1, "new")
    assert str(error.value) == message
    with pytest.raises(StoreError) as error:
        store.add_message(1, None, "user", "Hello again")
    assert str(error.value) == message
    store.delete_chat(2)
    assert read(store) == ["Hello"]
    store.rename_chat(1, "There is room now")
    store.close()
    assert [chat.title for chat in Store(path).chats()] == ["There is room now"]


def test_a_disk_that_fills_up_while_chats_are_open(disk, path):
    store = Store(path)
    fill(disk)
    with pytest.raises(StoreError, match="the disk is full"):
        store.add_message(1, None, "user", LONG)
    assert read(store) == [LONG, "Hello"]
    store.delete_chat(2)
    assert read(store) == ["Hello"]
    store.add_message(1, None, "user", "Hello again")
    store.close()


@pytest.mark.parametrize("leaves_log", [False, True])
def test_on_a_read_only_disk_chats_are_read(disk, path, leaves_log):
    if leaves_log:  # as a process does that was killed
        other = Store(path)
        other.rename_chat(1, "in the log")
        path = Path(shutil.copytree(disk, disk.parent / "copy", dirs_exist_ok=True)) / "chats.db"
        other.close()
        shutil.copytree(path.parent, disk / "copy")
        path = disk / "copy" / "chats.db"
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    store = Store(path)
    assert read(store) == [LONG, "Hello"]
    assert (store.chat(1).title == "in the log") == leaves_log
    for write in (lambda: store.rename_chat(1, "new"), lambda: store.delete_chat(1)):
        with pytest.raises(StoreError) as error:
            write()
        assert str(error.value) == f"{path}: cannot be written: the disk is read-only"
    store.close()


def test_a_file_that_sqlite_cannot_write_is_read(tmp_path, monkeypatch):
    """As in a folder of somebody else: here SQLite itself is kept from writing."""
    path = tmp_path / "chats.db"
    store = Store(path)
    store.create_chat(title="there")
    store.close()
    connect = sqlite3.connect

    def connect_for_reading(place, **options):
        is_plain = not place.startswith("file:")
        return connect(f"file:{place}?mode=ro" if is_plain else place, **{**options, "uri": True})

    monkeypatch.setattr(sqlite3, "connect", connect_for_reading)
    for file in tmp_path.glob("chats.db-*"):
        file.unlink()
    store = Store(path)
    assert [chat.title for chat in store.chats()] == ["there"]
    with pytest.raises(StoreError, match=r"cannot be written: it is read-only$"):
        store.rename_chat(1, "new")
    store.close()


class FullDisk(sqlite3.Connection):
    """SQLite where a log of what is changed has no room, but a change in place has."""

    is_in_place = False

    def execute(self, statement, *values):
        self.is_in_place |= statement == "PRAGMA journal_mode = MEMORY"
        if statement.startswith(("UPDATE", "INSERT", "DELETE")) and not self.is_in_place:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorname = "SQLITE_FULL"
            raise error
        return super().execute(statement, *values)


def test_what_sqlite_says_of_a_full_disk(tmp_path, monkeypatch):
    path = tmp_path / "chats.db"
    store = Store(path)
    for title in ("one", "two"):
        store.create_chat(title=title)
    store.close()
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda place, **options: connect(place, factory=FullDisk, **options)
    )
    store = Store(path)
    with pytest.raises(StoreError) as error:
        store.rename_chat(1, "new")
    assert str(error.value) == f"{path}: {FULL}"
    store.delete_chat(1)
    assert [chat.title for chat in store.chats()] == ["two"]
    store.close()


def test_no_chats_can_be_begun_on_a_full_disk(disk):
    fill(disk)
    with pytest.raises(StoreError, match=r"chats\.db: cannot be opened: the disk is full$"):
        Store(disk / "chats.db")
