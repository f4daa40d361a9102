"""Reads rows from files, folders and hub data sets, as streams if possible; and splits and draws
them.

Invariant: every row knows its location ("data.jsonl, line 3"), and a fault is one sentence that
begins with it; `formats` interprets the fields. Only content and seed decide whether a row is
trained on or evaluated, whatever the other rows and their order.
"""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np

from chatapp.common.userfiles import did_you_mean, missing_path, open_named, quoted, shown
from chatapp.prompting.examples import Record, csv_records, jsonl_records, not_utf8, unique_keys
from finetune.config.sections import ConfigError, TrainSource


class BadRow(ConfigError):
    """A row that cannot be used. reason: its category for counting, the same for similar rows."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file, with the fields of the file."""

    location: str
    fields: Mapping[str, Any]


FileRows = Iterator[Row | BadRow]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one file, or of one split of a hub data set. `rows` can be read repeatedly."""

    name: str
    rows: Callable[[], FileRows] = field(repr=False)


_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def tables(source: TrainSource) -> list[Table]:
    """The files of a source: one, those of a folder sorted by name, or a split.

    Raises ConfigError when it does not exist, or nothing in it can be read.
    """
    if "\0" in source.path:
        raise ConfigError(f"{quoted(source.path)}: holds a NUL character and is not a valid path")
    path = Path(source.path).expanduser()
    if path.is_dir():
        files = sorted(
            file
            for file in path.iterdir()
            if _suffix(file) in READERS and file.is_file() and not file.name.startswith(".")
        )
        if not files:
            raise ConfigError(f"{path}: this folder holds no file named {either(tuple(READERS))}")
        return [_table(file) for file in files]
    if path.exists() or _suffix(path) in READERS:
        return [_table(path)]
    if problem := missing_path(source.path):
        raise ConfigError(problem)
    if _HUB_ID.fullmatch(source.path):
        return [_hub_table(source)]
    raise ConfigError(f"{source.path}: there is no such file or folder")


def _suffix(path: Path) -> str:
    """The type of a file, by its name: ".jsonl" also of "rows.jsonl.gz"."""
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def either(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1]


def _table(path: Path) -> Table:
    read = READERS.get(_suffix(path))
    if read is None:
        raise ConfigError(f"{path}: expected a file named {either(tuple(READERS))}, also with .gz")
    return Table(str(path), lambda: read(path))


def _record_rows(records: Callable[[IO[bytes], str], Iterator[Record]], path: Path) -> FileRows:
    """Each record of a file as a row."""
    with _opened(path) as file:
        for line, record in records(file, str(path)):
            location = f"{path}, line {line}"
            if isinstance(record, str):
                yield BadRow("not readable", f"{location}: {record}")
            else:
                yield Row(location, cast(Mapping[str, Any], record))


def _text_rows(path: Path) -> FileRows:
    """A whole file as one row."""
    with _opened(path) as file:
        yield Row(str(path), {"text": _text_of(file.read(), str(path))})


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed. Raises ConfigError when it cannot be read."""
    try:
        with _open(path) as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: is not a whole gzip file: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _open(path: Path) -> IO[bytes]:
    if path.suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return open_named(path)


def _text_of(data: bytes, location: str) -> str:
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{location}, line {line}: {not_utf8(data)}") from None


def _json_records(file: IO[bytes], location: str) -> Iterator[Record]:
    # The content distinguishes an array from one object per line more reliably than the name.
    head = file.read(1 << 16).removeprefix(b"\xef\xbb\xbf").lstrip()
    file.seek(0)
    if head.startswith(b"["):
        return _array_records(_text_of(file.read(), location), location)
    if re.match(rb'\{\s*\n\s*"', head):
        raise ConfigError(
            f"{location}: is one JSON object, expected a list, or one object per line"
        )
    return jsonl_records(file)


_SPACE = re.compile(r"[ \t\n\r]*")


def _array_records(text: str, location: str) -> Iterator[Record]:
    """The elements of a JSON array one at a time, each with the line where it begins.

    Raises ConfigError if the array itself is broken, because nothing after that can be read.
    """
    decode = json.JSONDecoder(object_pairs_hook=unique_keys).raw_decode
    line, counted = 1, 0

    def next_token(position: int) -> int:
        space = _SPACE.match(text, position)
        return space.end() if space else position

    def broken(message: str) -> ConfigError:
        return ConfigError(f"{location}, line {line}: is not valid JSON: {message}")

    position = next_token(text.index("[") + 1)
    more = not text.startswith("]", position)
    while more:
        line += text.count("\n", counted, position)
        counted = position
        try:
            element, end = decode(text, position)
        except json.JSONDecodeError as error:
            line = error.lineno
            raise broken(f"{error.msg} at column {error.colno}") from None
        except ValueError as error:
            raise broken(str(error)) from None
        except RecursionError:
            raise broken("it is nested too deeply") from None
        yield line, element if isinstance(element, dict) else _no_object(element)
        position = next_token(end)
        more = text.startswith(",", position)
        if more:
            position = next_token(position + 1)
        elif not text.startswith("]", position):
            line += text.count("\n", counted, position)
            problem = f"found {quoted(text[position])}" if position < len(text) else "the file ends"
            raise broken(f"expected , or ] after an element, {problem}")
    if next_token(position + 1) != len(text):
        raise broken("there is text after the end of the list")


def _no_object(element: object) -> str:
    return f"is {shown(element)}, expected a JSON object"


def _parquet_rows(path: Path) -> FileRows:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for fields in batch.to_pylist():
                    number += 1
                    yield Row(f"{path}, row {number}", fields)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ArrowException as error:
        raise ConfigError(f"{path}: is not a whole Parquet file: {error}") from None


READERS: Mapping[str, Callable[[Path], FileRows]] = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), partial(_record_rows, _json_records)),
    ".csv": partial(_record_rows, lambda file, location: csv_records(file, tabs=False)),
    ".tsv": partial(_record_rows, lambda file, location: csv_records(file, tabs=True)),
    ".parquet": _parquet_rows,
    ".txt": _text_rows,
}
"""Every type of file by its suffix, and the reader of its rows."""


def _hub_table(source: TrainSource) -> Table:
    import datasets

    try:
        rows = datasets.load_dataset(source.path, source.subset or None, split=source.split)
    except Exception as error:  # the library raises many types of errors
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{source.path}: there is no such file or folder, and as a data set of the hub it "
            f"cannot be loaded: {reason}"
        ) from None
    name = f"{source.path} ({source.split})"

    def numbered() -> FileRows:
        return (Row(f"{name}, row {number}", fields) for number, fields in enumerate(rows, 1))

    return Table(name, numbered)


def renamed(table: Table, columns: Mapping[str, str]) -> Iterator[Row | BadRow]:
    """The rows of a table with the field names that `columns` maps them to.

    Raises ConfigError when the first row lacks a named column.
    """
    checked = False
    for row in table.rows():
        if isinstance(row, Row) and columns:
            if not checked:
                for name, column in columns.items():
                    if column not in row.fields:
                        raise ConfigError(
                            f"{row.location}: there is no column {quoted(column)} to take {name!r} "
                            f"from{did_you_mean(column, row.fields)}; there are {names(row.fields)}"
                        )
                checked = True
            others = {k: v for k, v in row.fields.items() if k not in columns.values()}
            taken = {n: row.fields[c] for n, c in columns.items() if c in row.fields}
            row = Row(row.location, others | taken)
        yield row


def names(fields: Iterable[str]) -> str:
    return ", ".join(quoted(str(name)) for name in fields) or "none"


T = TypeVar("T")


def content_key(content: object) -> str:
    """Sixteen hex digits over plain data: the same content gives the same key everywhere."""
    return text_key(json.dumps(content, sort_keys=True, default=str))


def text_key(text: str) -> str:
    """Sixteen hex digits over a text."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def is_held_out(key: str, share: float) -> bool:
    """Whether the row with this key belongs to the held-out `share`."""
    return int(key, 16) < share * 2.0**64


def draw(rows: Sequence[T], weight: float, seed: int) -> list[T]:
    """`weight` passes over the rows; a fraction is a seeded draw without replacement."""
    whole, fraction = divmod(weight, 1.0)
    chosen = list(rows) * int(whole)
    count = round(fraction * len(rows))
    order = np.random.default_rng(seed).permutation(len(rows))[:count]
    return chosen + [rows[i] for i in order]
