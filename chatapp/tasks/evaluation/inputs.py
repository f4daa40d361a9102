"""Inputs for `run` and test items for `eval`, from files and from standard input."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from chatapp.common.foreign import parse_json
from chatapp.common.userfiles import open_named
from chatapp.rows.examples import (
    INPUT_FIELDS,
    PLAIN_COLUMNS,
    POOL_SUFFIXES,
    Columns,
    Example,
    PoolRow,
    PromptError,
    Query,
    parse_row,
    read_rows,
)
from chatapp.rows.reading import BadRow, RowsError, suffix
from chatapp.tasks.metrics import Gold

_BOM = b"\xef\xbb\xbf"

Inputs = Iterator[tuple[int, Query | RowsError]]
"""Line numbers, and on each line an input or its error."""


def query_of(text: str, columns: Columns, location: str) -> Query:
    """The input that a text stands for: itself, or a JSON object where there are several fields.

    Raises PromptError, beginning with `location`.
    """
    if len(columns.inputs) == 1 and not columns.choices:
        return text
    record = _record(text)
    if not isinstance(record, dict):
        names = ", ".join((*columns.inputs, *([columns.choices] if columns.choices else [])))
        raise PromptError(f"{location}: expected a JSON object with the fields {names}")
    return parse_row(record, location, columns, output_required=False)


def read_inputs(path: Path, columns: Columns = PLAIN_COLUMNS) -> Inputs:
    """The inputs in a file, one at a time.

    Files of rows have the format of pools, with or without outputs; in any other file each line
    that is not blank is an input. A pipe is read like `read_stream`. Raises RowsError when the file
    itself cannot be read.
    """
    if suffix(path) in POOL_SUFFIXES:
        for line, row in read_rows(path, columns, output_required=False):
            yield line, row if isinstance(row, BadRow) else _query(row)
        return
    try:
        with open_named(path) as file:
            if not path.is_file():
                yield from read_stream(file, str(path), columns)
                return
            for line, text in _plain(file, str(path)):
                yield line, _parsed(text, columns, f"{path}, line {line}")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PromptError(f"{path}: cannot be read: {reason}") from None


def read_stream(
    lines: Iterable[bytes], source: str = "standard input", columns: Columns = PLAIN_COLUMNS
) -> Inputs:
    """The inputs in a stream: JSON Lines if the first line is such a row, else plain."""
    fields = INPUT_FIELDS if columns.inputs == ("input",) else columns.inputs
    is_json: bool | None = None
    for number, text in _plain(lines, source):
        if isinstance(text, RowsError):
            yield number, text
            continue
        record = _record(text)
        if is_json is None:
            is_json = isinstance(record, dict) and any(name in record for name in fields)
        if not is_json:
            yield number, _parsed(text, columns, f"{source}, line {number}")
            continue
        location = f"{source}, line {number}"
        if not isinstance(record, dict):
            yield number, PromptError(f"{location}: expected a JSON object like those before it")
            continue
        try:
            yield number, _query(parse_row(record, location, columns, output_required=False))
        except RowsError as error:
            yield number, error


def _query(row: PoolRow) -> Query:
    return row if row.values or row.choices else row.input


def _parsed(text: str | PromptError, columns: Columns, location: str) -> Query | RowsError:
    try:
        return text if isinstance(text, RowsError) else query_of(text, columns, location)
    except RowsError as error:
        return error


def _plain(lines: Iterable[bytes], source: str) -> Iterator[tuple[int, str | PromptError]]:
    for number, line in enumerate(lines, 1):
        try:
            text = (line.removeprefix(_BOM) if number == 1 else line).decode("utf-8").strip()
        except UnicodeDecodeError:
            yield number, PromptError(f"{source}, line {number}: is not UTF-8 text")
            continue
        if "\0" in text:
            yield number, PromptError(f"{source}, line {number}: holds a NUL character")
        elif text:
            yield number, text


def _record(text: str) -> object:
    try:
        return parse_json(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Item(Example):
    """A test item; `line` is its line in the file."""

    line: int

    @property
    def gold(self) -> Gold:
        """The correct output, or all of them."""
        return self.answers or self.output


def read_test(path: Path, columns: Columns = PLAIN_COLUMNS) -> list[Item]:
    """The test items in a file of rows; unlike in a pool, items may repeat.

    Raises RowsError at the first bad row, as a score over a part of the items is not one of the
    file; unless the prompt file says that bad rows are dropped.
    """
    items = []
    for line, row in read_rows(path, columns):
        if not isinstance(row, BadRow):
            parts = {"values": row.values, "choices": row.choices, "answers": row.answers}
            items.append(Item(row.input, row.output, line, **parts))  # type: ignore[arg-type]
        elif columns.bad_rows == "raise":
            raise row
    if not items:
        raise PromptError(f"{path}: contains no test items")
    return items
