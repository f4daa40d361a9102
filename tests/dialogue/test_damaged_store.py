"""A damaged file of chats is one sentence and stays unchanged; what is readable can be saved."""

import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from chatapp.dialogue.store import Store
from chatapp.dialogue.store.database import APPLICATION_ID, StoreError, log_of
from chatapp.dialogue.store.migrations import MIGRATIONS
from chatapp.dialogue.store.rescue import Rescued, rescue
from chatapp.dialogue.store.rows import StoredMessage

CHATS, MESSAGES = 12, 8
LONG = "a long reply " * 700
"""Longer than a page."""


def fill(path: Path, word: str = "walrus") -> None:
    with closing(Store(path)) as store:
        for number in range(CHATS):
            chat_id = store.create_chat(title=f"{word} {number}", system="Be brief.")
            parent: int | None = None
            for place in range(MESSAGES):
                text = LONG if place == 1 else f"{word} {place}"
                role = "assistant" if place % 2 else "user"
                parent = store.add_message(chat_id, parent, role, text).id
        store.set_thumb(2, 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fill(tmp_path / "chats.db")
    return tmp_path / "chats.db"


def use(path: Path) -> None:
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


def texts(path: Path) -> dict[str, list[str]]:
    """What a sound file has: the messages of each chat by its title."""
    with closing(Store(path)) as store:
        return {
            chat.title: [message.text for message in store.path(chat.id)]
            for chat in store.chats(limit=100)
        }


def damaged(data: bytes, seed: int) -> Iterator[bytes]:
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


def test_whatever_is_damaged_is_a_sentence_and_the_rest_is_saved(
    path: Path, tmp_path: Path
) -> None:
    data = path.read_bytes()
    for number, content in enumerate(damaged(data, seed=7)):
        folder = tmp_path / str(number)
        folder.mkdir()
        broken, new = folder / "chats.db", folder / "new.db"
        broken.write_bytes(content)
        with suppress(StoreError):
            rescue(broken, new)
            whole = texts(new)
            with closing(sqlite3.connect(new)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            assert whole
        assert broken.read_bytes() == content
        with suppress(StoreError):
            use(broken)


def overwrite(path: Path, start: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(content)


def test_nothing_is_lost_with_the_header(path: Path, tmp_path: Path) -> None:
    expected = texts(path)
    overwrite(path, 0, b"\xff" * 100)
    with pytest.raises(StoreError, match=r"is damaged .*; it was left unchanged; `chatapp history"):
        Store(path)
    assert rescue(path, tmp_path / "new.db") == Rescued(CHATS, CHATS * MESSAGES)
    assert texts(tmp_path / "new.db") == expected
    with closing(Store(tmp_path / "new.db")) as store:
        assert store.feedback(1)[2].thumb == 1
        assert len(store.search("walrus")) == 50


def test_messages_without_their_chat_are_a_chat_of_their_own(path: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM chats WHERE id = 3")  # SQLite's own default keeps messages
        connection.commit()
    rescue(path, tmp_path / "new.db")
    whole = texts(tmp_path / "new.db")
    assert whole["Rescued chat"][0] == "walrus 0"
    assert len(whole["Rescued chat"]) == MESSAGES


def test_what_was_deleted_stays_deleted(path: Path, tmp_path: Path) -> None:
    with closing(Store(path)) as store:
        for chat_id in range(2, CHATS + 1):
            store.delete_chat(chat_id)
    assert rescue(path, tmp_path / "new.db") == Rescued(1, MESSAGES)


def test_the_log_of_a_program_that_died_is_read_too(path: Path, tmp_path: Path) -> None:
    with closing(Store(path)) as store:
        chat_id = store.create_chat(title="In the log")
        store.add_message(chat_id, None, "user", "Hello")
        copy = tmp_path / "copy.db"
        shutil.copy(path, copy)
        shutil.copy(log_of(path), log_of(copy))
    assert rescue(copy, tmp_path / "new.db") == Rescued(CHATS + 1, CHATS * MESSAGES + 1)
    assert texts(copy)["In the log"] == ["Hello"]


def test_the_log_of_another_file_is_not_written_into_this_one(path: Path, tmp_path: Path) -> None:
    expected, content = texts(path), path.read_bytes()
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
    rescue(path, tmp_path / "new.db")
    assert texts(tmp_path / "new.db") == expected


def make_folder(path: Path) -> None:
    path.mkdir()


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("make", [make_folder, make_pipe])
def test_what_is_no_file_is_refused(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "chats.db")
    with pytest.raises(StoreError, match="is not a regular file"):
        Store(tmp_path / "chats.db")
    with pytest.raises(StoreError, match="cannot be read"):
        rescue(tmp_path / "chats.db", tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


def test_tables_of_another_shape_are_damage(tmp_path: Path) -> None:
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
def test_a_value_that_cannot_be_read_is_a_sentence(column: str, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE messages SET {column} WHERE id = 2")
        connection.commit()
    with closing(Store(path)) as store:
        try:
            found: StoredMessage | str = store.message(2)
        except StoreError as error:
            found = str(error)
    assert "a value cannot be read" in str(found) or "a\ufffdb" in str(found)


def test_an_empty_file_is_a_new_one_and_has_nothing_to_save(tmp_path: Path) -> None:
    (tmp_path / "chats.db").touch()
    with pytest.raises(StoreError, match="no chat in it that can be read"):
        rescue(tmp_path / "chats.db", tmp_path / "new.db")
    with closing(Store(tmp_path / "chats.db")) as store:
        assert store.chats() == []


def test_an_existing_file_is_not_replaced(path: Path, tmp_path: Path) -> None:
    (tmp_path / "new.db").write_text("mine")
    with pytest.raises(StoreError, match="already exists"):
        rescue(path, tmp_path / "new.db")
    assert (tmp_path / "new.db").read_text() == "mine"
