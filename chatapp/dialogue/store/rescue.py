"""What is readable of a damaged file of chats, in a new file.

The rows are read from the pages themselves, as https://sqlite.org/fileformat2.html describes them:
every leaf of a table, and the pages on which a long row goes on. So they are there whatever has
become of the header, the schema, the inner pages and the index. To which table a row belongs is
known by the types of its columns.

Invariant: the damaged file is only read. What was deleted stays deleted: pages that are free are
not read.
"""

import json
import sqlite3
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chatapp.common.userfiles import open_regular, reason
from chatapp.dialogue.store.database import Database, StoreError, is_sound, log_of

_MAGIC = b"SQLite format 3\0"
_PAGE = 4096
"""Bytes of a page where the header does not tell: what SQLite takes for a new file."""

_LEAF = 0x0D
_FIRST = {"chats": 9, "messages": 7, "turns": 14, "feedback": 6, "comparisons": 5}
"""The tables, in the order in which they can be filled, and how many columns they had at first."""

_JSON = {
    **dict.fromkeys(("sources", "calls", "tools", "allowed_tools"), "[]"),
    **dict.fromkeys(("chosen", "sampling"), "{}"),
    **dict.fromkeys(("documents", "conditions"), None),
}
"""The columns of JSON, and the value of one that cannot be read."""

_Rows = dict[str, dict[int, list[Any]]]


@dataclass(frozen=True, slots=True)
class Rescued:
    """How many chats and messages are in the new file."""

    chats: int
    messages: int


def rescue(damaged: Path, new: Path) -> Rescued:
    """Write what is readable of a damaged file of chats into a new one.

    Messages whose chat is lost become chats of their own. Raises StoreError when there is nothing
    to read, or `new` exists or cannot be written.
    """
    if new.exists():
        raise StoreError(f"{new}: this file already exists")
    empty = Database(None)
    columns = {table: empty.rows(f"PRAGMA table_info({table})") for table in _FIRST}
    empty.close()
    rows: _Rows = {table: {} for table in _FIRST}
    for id, values in _Pages(damaged).rows():
        for table, least in _FIRST.items():
            if least <= len(values) and _fits(values, columns[table]):
                rows[table].setdefault(id, values)
    if not rows["chats"] and not rows["messages"]:
        raise StoreError(f"{damaged}: there is no chat in it that can be read")
    try:
        with closing(Database(new)) as database, database.transaction():
            return _fill(database, rows, columns)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


class _Pages:
    """The pages of a file, as far as they can be read."""

    def __init__(self, path: Path) -> None:
        try:
            with open_regular(path) as file:
                self._data = file.read()
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {reason(error)}") from None
        size = int.from_bytes(self._data[16:18], "big")
        known = self._data.startswith(_MAGIC) and size >= 512 and size & (size - 1) == 0
        self._size = size if known else _PAGE
        self._newer: dict[int, bytes] = {}
        log = log_of(path)
        # The log of another file would put that one's pages among these.
        if log.is_file() and (is_sound(path) or not is_sound(path, with_log=False)):
            self._newer = dict(_logged(log.read_bytes(), self._size))
        self._count = max([-(-len(self._data) // self._size), *self._newer])

    def page(self, number: int) -> bytes:
        """A page by its number, from 1; shorter where the file ends."""
        start = (number - 1) * self._size
        return self._newer.get(number) or self._data[start : start + self._size]

    def rows(self) -> Iterator[tuple[int, list[Any]]]:
        """The id and the values of every row that a leaf of a table has."""
        free = self._free() if self._data.startswith(_MAGIC) else set()
        for number in range(1, self._count + 1):
            if number not in free:
                yield from self._leaf(self.page(number), 100 if number == 1 else 0)

    def _free(self) -> set[int]:
        """The numbers of the pages that are not in use."""
        free: set[int] = set()
        number = int.from_bytes(self.page(1)[32:36], "big")
        while 0 < number <= self._count and number not in free:
            page = self.page(number)
            free.add(number)
            if len(page) < self._size:
                break
            number, count = struct.unpack_from(">II", page)
            count = min(count, self._size // 4 - 2)
            free.update(struct.unpack_from(f">{count}I", page, 8))
        return free

    def _leaf(self, page: bytes, start: int) -> Iterator[tuple[int, list[Any]]]:
        if len(page) < start + 8 or page[start] != _LEAF:
            return
        (cells,) = struct.unpack_from(">H", page, start + 3)
        for place in range(start + 8, start + 8 + 2 * min(cells, self._size // 4), 2):
            with suppress(IndexError, ValueError, struct.error, OverflowError):
                (at,) = struct.unpack_from(">H", page, place)
                length, at = _varint(page, at)
                id, at = _varint(page, at)
                yield id, _values(self._payload(page, at, length))

    def _payload(self, page: bytes, at: int, length: int) -> bytes:
        """The bytes of a row, which may go on in other pages. Raises ValueError."""
        if length > self._count * self._size:
            raise ValueError("longer than the file")
        here = length
        if length > self._size - 35:
            least = (self._size - 12) * 32 // 255 - 23
            here = least + (length - least) % (self._size - 4)
            here = here if here <= self._size - 35 else least
        data = bytearray(page[at : at + here])
        next_page = int.from_bytes(page[at + here : at + here + 4], "big")
        while len(data) < length:
            more = self.page(next_page) if next_page else b""
            if len(more) < 5:
                raise ValueError("a page is missing")
            next_page = int.from_bytes(more[:4], "big")
            data += more[4 : 4 + length - len(data)]
        return bytes(data)


def _logged(log: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    """The pages of a write-ahead log with their numbers, up to its last whole transaction."""
    frames: list[tuple[int, bytes]] = []
    whole = 0
    for at in range(32, len(log) - 24 - size + 1, 24 + size):
        number, committed = struct.unpack_from(">II", log, at)
        if log[at + 8 : at + 16] != log[16:24]:  # left from before the log began anew
            break
        frames.append((number, log[at + 24 : at + 24 + size]))
        whole = len(frames) if committed else whole
    yield from frames[:whole]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of up to nine bytes, and where it ends. Raises IndexError."""
    value = 0
    for place in range(at, at + 8):
        value = value << 7 | data[place] & 0x7F
        if data[place] < 0x80:
            return value, place + 1
    return value << 8 | data[at + 8], at + 9


def _values(record: bytes) -> list[Any]:
    """The columns of a row. Raises IndexError, ValueError and struct.error."""
    end, at = _varint(record, 0)
    kinds = []
    while at < end:
        kind, at = _varint(record, at)
        kinds.append(kind)
    values: list[Any] = []
    at = end
    for kind in kinds:
        length = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)[kind] if kind < 12 else (kind - 12) // 2
        data = record[at : at + length]
        if len(data) < length:
            raise ValueError("the row is cut off")
        at += length
        if kind >= 12:
            values.append(data.decode("utf-8", "replace") if kind % 2 else data)
        elif kind == 7:
            values.append(struct.unpack(">d", data)[0])
        elif kind in (8, 9):
            values.append(kind - 8)
        else:
            values.append(int.from_bytes(data, "big", signed=True) if kind else None)
    return values


def _fits(values: list[Any], columns: list[sqlite3.Row]) -> bool:
    """Whether a row may be one of a table. The id stands outside the values, as NULL."""
    kinds = {"INTEGER": int, "REAL": int | float, "TEXT": str}
    return len(values) <= len(columns) and all(
        value is None
        if column["pk"]
        else isinstance(value, kinds[column["type"]]) or (value is None and not column["notnull"])
        for value, column in zip(values, columns, strict=False)
    )


def _fill(database: Database, rows: _Rows, columns: dict[str, list[sqlite3.Row]]) -> Rescued:
    """Insert what was read, as far as it belongs together."""
    leaves: dict[int, int] = {}
    chat_of: dict[int, int] = {}
    for table in _FIRST:
        names = [column["name"] for column in columns[table]]
        key = next(column["name"] for column in columns[table] if column["pk"])
        for id, values in sorted(rows[table].items()):
            row = {**dict(zip(names, values, strict=False)), key: id}
            row |= {name: _json(row[name], _JSON[name]) for name in row.keys() & _JSON.keys()}
            if table == "chats":
                leaves[id] = row["leaf_id"] or 0
                row |= {"leaf_id": None, "messages": 0}
            if table == "messages":
                chat = row["chat_id"]
                if chat not in leaves:
                    database.insert("chats", id=chat, **_lost_chat(row["created"]))
                    leaves[chat] = 0
                if row["parent_id"] is not None and chat_of.get(row["parent_id"]) != chat:
                    before = [id for id, its_chat in chat_of.items() if its_chat == chat]
                    row["parent_id"] = before[-1] if before else None
            # A row that contradicts others, or a rule of its table, is part of the damage.
            with suppress(StoreError):
                database.insert(table, **row)
                if table == "messages":
                    chat_of[id] = chat
    for chat, count in Counter(chat_of.values()).items():
        leaf = leaves[chat]
        if chat_of.get(leaf) != chat:
            leaf = max(id for id, its_chat in chat_of.items() if its_chat == chat)
        database.update("chats", chat, leaf_id=leaf, messages=count)
    return Rescued(len(leaves), len(chat_of))


def _json(text: Any, otherwise: str | None) -> Any:
    """A column's JSON, where it can be read."""
    try:
        json.loads(text)
    except (TypeError, ValueError):
        return otherwise
    return text


def _lost_chat(created: float) -> Mapping[str, Any]:
    """The row of a chat of which only messages are left."""
    times = {"created": created, "updated": created}
    return {"title": "Rescued chat", "template": "", "model": "", **times}
