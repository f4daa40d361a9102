"""A JSON Lines file that a later start continues.

The format: UTF-8 in which all but ASCII is escaped, one JSON object a line, each line ended by
a line feed, rows in the order in which they were made. What a row holds is its writer's affair:
those of `run --output` are described in `batch`, those of `eval --report` in `answers`, whose
first row is a head. While a process writes NAME, it holds a lock on the file .NAME.lock beside
it, which holds nothing and is gone when the process ends.

Keep: whatever kills the program, the file is whole lines and at most one half line at its end;
that one is cut off when the file is opened again, and its row is done anew.
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from chatapp.prompting.examples import PromptError
from chatapp.userfiles import reason

JournalRow = dict[str, Any]


class NotWritten(Exception):
    """Rows that could not be written, in one sentence; those before them are on the disk."""


def read_rows(path: Path) -> Iterator[JournalRow]:
    """The whole rows of a file, one at a time; half a row at its end is passed over.

    Raises PromptError at a line that is no row, and when the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                is_half = not line.endswith(b"\n")
                row = None
                with suppress(ValueError, RecursionError):
                    row = {} if is_half and line.startswith(b"{") else json.loads(line)
                if not isinstance(row, dict):
                    raise PromptError(
                        f"{path}, line {number}: is no row that can be continued; "
                        "name another file, or delete this one"
                    )
                if not is_half:
                    yield row
    except OSError as error:
        raise PromptError(f"{path}: cannot be read: {reason(error)}") from None


class Journal:
    """The file, open for appending and locked against a second process.

    Nothing is changed before the first `append`, so that a file that turns out to be another
    one is left as it was. Raises PromptError when it cannot be opened, or is in use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_file():  # a device would be read without end
            raise PromptError(f"{path}: cannot be written: is no regular file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
            self._lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=0)
            self._lock.acquire()
        except Timeout:
            self._file.close()
            raise PromptError(f"{path}: another process is writing this file") from None
        except OSError as error:
            raise PromptError(f"{path}: cannot be written: {reason(error)}") from None
        self._is_whole = False

    def rows(self) -> Iterator[JournalRow]:
        """The rows that are there (see `read_rows`)."""
        return read_rows(self.path)

    def append(self, rows: Iterable[JournalRow]) -> None:
        """Write rows, and have them on the disk before this returns. Raises NotWritten."""
        try:
            if not self._is_whole:
                self._cut()
                self._is_whole = True
            self._file.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise NotWritten(f"{self.path}: cannot be written: {reason(error)}") from None

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # what `append` could not write is tried once more here
            self._file.close()
        # While it is still held: a moment later it may be the lock of another process.
        with suppress(OSError):
            os.unlink(self._lock.lock_file)
        self._lock.release()

    def _cut(self) -> None:
        """Drop what stands after the last line break."""
        end = self._file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - 2**16)
            self._file.seek(begin)
            line_end = self._file.read(end - begin).rfind(b"\n")
            if line_end >= 0:
                end = begin + line_end + 1
                break
            end = begin
        self._file.truncate(end)
