"""One SQLite file: opening it, transactions, errors as sentences.

Invariant: a file that is damaged, belongs to another program or has a newer format is never written
to. One that cannot be written, because the disk is full or read-only, can still be read.

Lone surrogates, which UTF-8 cannot hold, are stored as U+FFFD. All other text is stored unchanged,
including control characters.
"""

import json
import os
import sqlite3
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from chatapp.common.foreign import without_surrogates
from chatapp.common.userfiles import DISK_FULL, UserError, make_private, reason
from chatapp.dialogue.store.migrations import MIGRATIONS

APPLICATION_ID = 0x63686174
"""`PRAGMA application_id` of this program's files: "chat"."""

_Value = TypeVar("_Value")

_LEAST_SQLITE = (3, 37, 0)
"""The first with STRICT tables; no statement of the store may need a later one."""

_BUSY_SECONDS = 10.0
_LARGEST_CHECKED = 2**26
"""Bytes of a file that is checked together with its log: that takes less than a second."""

_LARGEST_INTEGER = 2**63 - 1

_NO_ROOM = ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_WRITE")
"""SQLite's names of what it meets on a full disk: also its shared memory is a file."""
_NO_WRITING = ("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")

_NOUNS = {"chats": "chat", "messages": "message", "turns": "generation"}
"""The noun for a row of a table."""


class StoreError(UserError):
    """A fault of the store or of a request to it, in one sentence for the user."""


class CannotWrite(StoreError):
    """Nothing can be stored, although what is stored may be readable. why: a clause."""

    def __init__(self, path: Path | None, why: str) -> None:
        hint = "; `chatapp history delete ID` frees space" if why == DISK_FULL else ""
        super().__init__(f"{path}: cannot be written: {why}{hint}")
        self.why = why


class Gone(StoreError):
    """A chat, message or generation is no longer in the store, or is in the bin."""


class Database:
    """An open file. Usable from any thread; several processes may have it open.

    Every method raises StoreError when the file cannot be read or written.
    """

    def __init__(self, path: Path | None) -> None:
        """Open `path`, or create it, readable by its owner only; if it cannot be written, for
        reading. None: a database in memory, which is lost when it is closed.

        Raises StoreError, and writes nothing, when the file is damaged, is not a database of this
        program, or was made by a newer version of it.
        """
        _check_library()
        self.path = path
        self._lock = threading.RLock()
        self._open()

    def _open(self) -> None:
        path = self.path
        self._obstacle = ""  # why nothing can be written
        try:
            self._create_file()
            self._check_log()
            self._connect(":memory:" if path is None else str(path))
            self._bring_up_to_date_in_turn()
        except CannotWrite as error:
            if path is None or not path.is_file() or not path.stat().st_size:
                raise StoreError(f"{path}: cannot be opened: {error.why}") from None
            self._open_for_reading(path, error.why)

    def _connect(self, place: str) -> None:
        with self._errors():
            self._connection = sqlite3.connect(
                place,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
                uri=place.startswith("file:"),
            )
        self._connection.row_factory = sqlite3.Row
        # Damaged text is shown with U+FFFD, and does not make its chat unreadable.
        self._connection.text_factory = lambda data: data.decode("utf-8", "replace")
        self._connection.create_function("folded", 1, _folded, deterministic=True)

    def _open_for_reading(self, path: Path, why: str) -> None:
        """Open a file that cannot be written."""
        # Without a log SQLite needs no shared memory, for which there may be no room.
        has_log = log_of(path).is_file() and log_of(path).stat().st_size > 0
        self._obstacle = why
        try:
            self._connect(f"{path.absolute().as_uri()}?{'mode=ro' if has_log else 'immutable=1'}")
            with self.transaction("DEFERRED"):
                is_current = self._checked_format() == len(MIGRATIONS)
        except CannotWrite:
            raise StoreError(f"{path}: cannot be opened: {why}") from None
        if not is_current:
            self._connection.close()
            raise StoreError(f"{path}: has an older format, and cannot be converted: {why}")

    def _bring_up_to_date_in_turn(self) -> None:
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                self._bring_up_to_date()
                break
            except StoreError as error:
                # While another process creates the same file, SQLite itself does not wait.
                name = getattr(error.__cause__, "sqlite_errorname", "")
                if not name.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                    self._connection.close()
                    raise
            time.sleep(0.01)

    def close(self) -> None:
        """Close the file. No other method may be called afterwards."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def transaction(self, kind: Literal["IMMEDIATE", "DEFERRED"] = "IMMEDIATE") -> Iterator[None]:
        """Store the statements within the block as a whole, or not at all. A nested transaction is
        part of the outer one.

        IMMEDIATE acquires the write lock at once, so that the block never fails half-way because
        another process wrote in between. DEFERRED is for reading.
        """
        with self._lock:
            with self._errors():
                within_another = self._connection.in_transaction
            if within_another:
                yield
                return
            self.rows(f"BEGIN {kind}")
            try:
                yield
                self.rows("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self.rows("ROLLBACK")
                raise

    def _create_file(self) -> None:
        path = self.path
        if path is None:
            return
        try:
            make_private(path.parent)
            # SQLite gives its -wal and -shm files the mode of the database. An existing file is not
            # opened here: closing it would end the locks of this process's other stores.
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            if not path.is_file():
                raise StoreError(f"{path}: is not a regular file; move it away to start afresh")
            path.chmod(0o600)
        except OSError as error:
            raise CannotWrite(path, reason(error)) from None

    def _check_log(self) -> None:
        """Refuse a write-ahead log that does not fit the file, before SQLite writes it in there:
        that of another file, for instance."""
        path = self.path
        if path is None or not log_of(path).is_file() or path.stat().st_size > _LARGEST_CHECKED:
            return
        if log_of(path).stat().st_size and not is_sound(path):
            raise self._damaged(f"{log_of(path).name} does not fit it")

    def _bring_up_to_date(self) -> None:
        """Check the kind of the file, and run its missing migrations."""
        self.rows("PRAGMA foreign_keys = ON")
        # One snapshot: another process may be creating the tables right now.
        with self.transaction("DEFERRED"):
            file_format = self._checked_format()
        # Writers then never wait for readers, and a killed process leaves a consistent file.
        self.rows("PRAGMA journal_mode = WAL")
        self.rows("PRAGMA synchronous = NORMAL")
        if file_format == len(MIGRATIONS):
            return
        with self.transaction():
            # Checked again: another process may have been faster.
            missing = list(MIGRATIONS.values())[self._checked_format() :]
            for statement in (statement for migration in missing for statement in migration):
                self.rows(statement)
            self.rows(f"PRAGMA user_version = {len(MIGRATIONS)}")
            self.rows(f"PRAGMA application_id = {APPLICATION_ID}")

    def _checked_format(self) -> int:
        """The number of migrations that the file has had. Raises StoreError for a foreign or newer
        one.
        """
        file_format = self._pragma("user_version")
        tables = self.rows("SELECT count(*) AS number FROM sqlite_schema")[0]["number"]
        if tables and self._pragma("application_id") != APPLICATION_ID:
            raise StoreError(f"{self.path}: belongs to another program")
        if file_format > len(MIGRATIONS):
            raise StoreError(
                f"{self.path}: was made by a newer version of chatapp (format {file_format}; "
                f"this version knows up to {len(MIGRATIONS)})"
            )
        return file_format

    def _pragma(self, name: str) -> int:
        return int(self.rows(f"PRAGMA {name}")[0][name])

    def rows(self, statement: str, *values: Any) -> list[sqlite3.Row]:
        """The rows of a statement, with its values bound in order."""
        storable = [_storable(value) for value in values]
        with self._lock, self._errors():
            return self._connection.execute(statement, storable).fetchall()

    def read(
        self, make: Callable[[sqlite3.Row], _Value], statement: str, *values: Any
    ) -> list[_Value]:
        """The rows that a statement gives as values. make: makes one of a row."""
        rows = self.rows(statement, *values)
        try:
            return [make(row) for row in rows]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._damaged(f"a value cannot be read: {error}") from error

    def row(self, table: str, statement: str, *values: Any) -> sqlite3.Row:
        """The one row that a statement gives. The last value is the id of a row of `table`;
        raises Gone when there is no such row."""
        return self.read_one(lambda row: row, table, statement, *values)

    def read_one(
        self, make: Callable[[sqlite3.Row], _Value], table: str, statement: str, *values: Any
    ) -> _Value:
        """The same as a value. make: see `read`."""
        result_rows = self.read(make, statement, *values)
        if not result_rows:
            raise Gone(f"there is no {_NOUNS[table]} {values[-1]}")
        return result_rows[0]

    def insert(self, table: str, **columns: Any) -> int:
        """Add a row; returns its id."""
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        statement = f"INSERT INTO {table} ({names}) VALUES ({marks}) RETURNING rowid"
        return int(self.rows(statement, *columns.values())[0][0])

    def update(self, table: str, row_id: int, **columns: Any) -> None:
        """Set columns of a row. Raises Gone when there is no such row."""
        assignments = ", ".join(f"{name} = ?" for name in columns)
        statement = f"UPDATE {table} SET {assignments} WHERE id = ? RETURNING id"
        self.row(table, statement, *columns.values(), row_id)

    def delete(self, table: str, row_id: int) -> None:
        """Delete a row, also on a full disk. Raises Gone when there is no such row."""
        statement = f"DELETE FROM {table} WHERE id = ? RETURNING id"
        try:
            self.row(table, statement, row_id)
        except CannotWrite as error:
            if self.path is None or error.why != DISK_FULL:
                raise
            with self._lock:
                self._connection.close()
                try:
                    self._make_smaller(str(self.path), table, statement, row_id)
                except CannotWrite:  # its log has no room in it
                    raise StoreError(
                        f"{self.path}: cannot be written: {DISK_FULL}; delete other files first"
                    ) from None
                finally:
                    self._open()

    def _make_smaller(self, path: str, table: str, statement: str, row_id: int) -> None:
        """Delete a row and shrink the file in place: there is no room for a log beside it."""
        self._connect(path)
        try:
            self.rows("PRAGMA locking_mode = EXCLUSIVE")  # which needs no shared memory
            self.rows("PRAGMA temp_store = MEMORY")
            self.rows("PRAGMA journal_mode = MEMORY")
            self.rows("PRAGMA foreign_keys = ON")
            self.row(table, statement, row_id)
            self.rows("VACUUM")
        finally:
            self._connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """SQLite's errors as StoreError."""
        try:
            yield
        except (sqlite3.OperationalError, sqlite3.ProgrammingError) as error:
            if str(error).startswith("no such"):  # a table or column that every store has
                raise self._damaged(error) from error
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith((*_NO_ROOM, *_NO_WRITING)):
                why = DISK_FULL if name.startswith(_NO_ROOM) else "it is read-only"
                raise CannotWrite(self.path, self._obstacle or why) from error
            raise StoreError(f"{self.path}: cannot be used: {error}") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise self._damaged(error) from error

    def _damaged(self, problem: object) -> StoreError:
        return StoreError(
            f"{self.path}: is damaged or not a chat database ({problem}); it was left unchanged; "
            "`chatapp history restore` puts the last daily copy in its place; move it away to "
            "start afresh"
        )


def log_of(path: Path) -> Path:
    """The write-ahead log of a file of SQLite's."""
    return path.with_name(f"{path.name}-wal")


def is_sound(path: Path, *, with_log: bool = True) -> bool:
    """Whether a file is whole, with its write-ahead log or without. Nothing is written to it."""
    how = "mode=ro" if with_log else "immutable=1"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)) as connection:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
    except sqlite3.OperationalError:
        return True  # it is locked, or cannot be opened like this: that says nothing of it
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return False


def _check_library() -> None:
    """Refuse an SQLite that cannot read the tables, before anything is written."""
    if sqlite3.sqlite_version_info < _LEAST_SQLITE:
        least = ".".join(map(str, _LEAST_SQLITE))
        raise StoreError(
            f"chats need SQLite {least} or newer; this Python brings {sqlite3.sqlite_version}"
        )


def _folded(text: str) -> str:
    """Remove case and accents from a text, as in the index of messages."""
    parts = unicodedata.normalize("NFD", text.casefold())
    return "".join(part for part in parts if not unicodedata.combining(part))


def _storable(value: Any) -> Any:
    """Convert a value for SQLite: lists and tables to JSON. A number beyond its integers becomes
    the nearest one, because no id or limit is that large.
    """
    match value:
        case str():
            return without_surrogates(value)
        case int():
            return max(-_LARGEST_INTEGER, min(value, _LARGEST_INTEGER))
        case list() | dict():
            return json.dumps(value) if value else str(value)  # ASCII
    return value
