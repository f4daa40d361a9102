"""Reads rows from files, folders and hub data sets, as streams.

Invariant: every row knows its location ("data.jsonl, line 3"), and a fault is one sentence that
begins with it. At most a few rows of a file are in memory, whatever its size.
"""

import csv
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, Protocol, cast

from chatapp.common.extras import require
from chatapp.common.foreign import parse_json, without_surrogates
from chatapp.common.userfiles import (
    UserError,
    did_you_mean,
    encoding_hint,
    missing_path,
    open_named,
    quoted,
    read_whole,
    reason,
    shown,
)


class RowsError(UserError, ValueError):
    """A file of rows, or a row, that cannot be used."""


class BadRow(RowsError):
    """A row that cannot be used. reason: its category for counting, the same for similar rows.
    number: see `Row`.
    """

    def __init__(self, reason: str, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.reason, self.number = reason, number


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file, with the fields of the file. number: of its line, or of the row."""

    location: str
    fields: Mapping[str, Any]
    number: int = field(default=0, compare=False)


FileRows = Iterator[Row | BadRow]
Labels = Mapping[str, Sequence[str]]
"""The names of the numbers in a column, in their order, by column."""


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows of one file, or of one split of a hub data set. `rows` can be read repeatedly.

    labels: the names that the file itself gives to the numbers in its columns.
    """

    name: str
    rows: Callable[[], FileRows] = field(repr=False)
    labels: Labels = field(default_factory=dict)


class RowSource(Protocol):
    """Where rows come from: a path, or the id of a hub data set with a subset and a split."""

    path: str
    subset: str
    split: str


@dataclass(slots=True)
class FileSource:
    """A file, a folder, or the training rows of a hub data set."""

    path: str
    subset: str = ""
    split: str = "train"


_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_BOM = b"\xef\xbb\xbf"


def tables(source: RowSource) -> list[RowTable]:
    """The files of a source: one, those of a folder sorted by name, or a split.

    Raises RowsError when it does not exist, or nothing in it can be read.
    """
    if "\0" in source.path:
        raise RowsError(f"{quoted(source.path)}: holds a NUL character and is not a valid path")
    path = Path(source.path).expanduser()
    if path.is_dir():
        files = sorted(
            file
            for file in path.iterdir()
            if suffix(file) in READERS and file.is_file() and not file.name.startswith(".")
        )
        if not files:
            raise RowsError(f"{path}: this folder holds no file named {either(tuple(READERS))}")
        return [_table(file) for file in files]
    if path.exists() or suffix(path) in READERS:
        return [_table(path)]
    if problem := missing_path(source.path):
        raise RowsError(problem)
    if _HUB_ID.fullmatch(source.path):
        return [_hub_table(source)]
    raise RowsError(f"{source.path}: there is no such file or folder")


def suffix(path: Path) -> str:
    """The type of a file, by its name: ".jsonl" also of "rows.jsonl.gz"."""
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def either(names: Sequence[str]) -> str:
    """Words as a choice: "a, b or c"."""
    return ", ".join(names[:-1]) + " or " + names[-1]


def _table(path: Path) -> RowTable:
    read = READERS.get(suffix(path))
    if read is None:
        raise RowsError(f"{path}: expected a file named {either(tuple(READERS))}, also with .gz")
    labels = _parquet_labels(path) if read is _parquet_rows else {}
    return RowTable(str(path), lambda: read(path), labels)


Record = tuple[int, Mapping[Any, Any] | str]
"""The line where a record begins, and its fields or the reason why it has none."""


def _record_rows(records: Callable[[IO[bytes], str], Iterator[Record]], path: Path) -> FileRows:
    """Each record of a file as a row."""
    with opened(path) as file:
        for line, record in records(file, str(path)):
            location = f"{path}, line {line}"
            if isinstance(record, str):
                yield BadRow("not readable", f"{location}: {record}", line)
            else:
                yield Row(location, record, line)


def _text_rows(path: Path) -> FileRows:
    """A whole file as one row."""
    with opened(path) as file:
        data = read_whole(file, path)
    try:
        yield Row(str(path), {"text": data.decode("utf-8-sig").replace("\r\n", "\n")})
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RowsError(f"{path}, line {line}: {not_utf8(data)}") from None


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed. Raises RowsError when it cannot be read."""
    try:
        is_packed = path.suffix.lower() == ".gz"
        with cast(IO[bytes], gzip.open(path, "rb")) if is_packed else open_named(path) as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise RowsError(f"{path}: is not a whole gzip file: {error}") from None
    except OSError as error:
        raise RowsError(f"{path}: cannot be read: {reason(error)}") from None


def not_utf8(data: bytes) -> str:
    """The sentence that bytes are not UTF-8, with a guess at their encoding."""
    return f"is not UTF-8 text {encoding_hint(data)}"


_CHUNK = 1 << 16
_SPACE = re.compile(r"[ \t\n\r]*")


def _json_records(file: IO[bytes], location: str) -> Iterator[Record]:
    # The content distinguishes an array from one object per line more reliably than the name.
    head = file.read(_CHUNK).removeprefix(_BOM).lstrip()
    file.seek(0)
    if head.startswith(b"["):
        return _Elements(file, location).records()
    if re.match(rb'\{\s*\n\s*"', head):  # one object in several lines
        return jsonl_records([file.read(_LONGEST_ROW + 1).replace(b"\n", b" ")])
    return jsonl_records(_bounded_lines(file))


def _bounded_lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file; of one that is longer than a row may be, a little more than that."""
    while line := file.readline(_LONGEST_ROW + 1):
        yield line
        while line and not line.endswith(b"\n"):
            line = file.readline(_LONGEST_ROW)


_LONGEST_ROW = 16 * 2**20
"""Bytes: far more than any model's window, also where a compressed file makes it of little."""


def jsonl_records(file: Iterable[bytes]) -> Iterator[Record]:
    """Yield the objects of a JSONL file, one per line; blank lines are skipped."""
    # Lines of bytes, because lines of text would also end at U+2028 and similar characters.
    for number, line in enumerate(file, 1):
        if number == 1:
            line = line.removeprefix(_BOM)
        if len(line) > _LONGEST_ROW:
            yield number, f"is longer than {_LONGEST_ROW:,} bytes"
        elif line.strip():
            yield number, _jsonl_record(line)


def _jsonl_record(line: bytes) -> Mapping[Any, Any] | str:
    try:
        text = line.decode("utf-8").rstrip()  # so an error at the end has a column of this line
        record = parse_json(text, object_pairs_hook=unique_keys)
    except UnicodeDecodeError:
        return not_utf8(line)
    except json.JSONDecodeError as error:
        return f"is not valid JSON: {error.msg} at column {error.colno}"
    except ValueError as error:
        return f"is not valid JSON: {str(error).split(';')[0]}"
    if not isinstance(record, dict):
        hint = "; write one object per line" if isinstance(record, list) else ""
        return f"is {shown(record)}, expected a JSON object{hint}"
    return record


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without a repeated key; half of a character, which no text has, becomes U+FFFD.

    Raises ValueError.
    """
    record = {without_surrogates(name): _text_in(value) for name, value in pairs}
    if len(record) < len(pairs):
        ((repeated, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {quoted(repeated)} occurs twice")
    return record


def _text_in(value: Any) -> Any:
    if isinstance(value, list):
        return [_text_in(part) for part in value]
    return without_surrogates(value) if isinstance(value, str) else value


class _Elements:
    """The elements of a JSON array in a file, one at a time."""

    def __init__(self, file: IO[bytes], location: str) -> None:
        self._file, self._location = file, location
        self._text, self._place, self._line = "", 0, 1
        self._rest = b""
        self._is_over = False

    def records(self) -> Iterator[Record]:
        """Each element with the line where it begins.

        Raises RowsError if the array itself is broken, because nothing after that can be read.
        """
        self._read()
        self._text = self._text.removeprefix("\ufeff")
        self._next("[")
        self._place += 1
        more = self._next() != "]"
        while more:
            line = self._line + self._text.count("\n", 0, self._place)
            element = self._element()
            is_object = isinstance(element, dict)
            yield line, element if is_object else f"is {shown(element)}, expected a JSON object"
            mark = self._next()
            more = mark == ","
            if not more and mark != "]":
                problem = f"found {quoted(mark)}" if mark else "the file ends"
                raise self._broken(f"expected , or ] after an element, {problem}")
            self._place += more
            self._next()
            self._forget()
        self._place += 1
        if self._next():
            raise self._broken("there is text after the end of the list")

    def _element(self) -> Any:
        decode = json.JSONDecoder(object_pairs_hook=unique_keys).raw_decode
        while True:
            try:
                element, end = decode(self._text, self._place)
            except json.JSONDecodeError as error:
                # A fault well before the end of what was read is not one of reading too little.
                is_early = error.pos < len(self._text) - 16 and "Unterminated" not in error.msg
                if is_early or self._is_over:
                    self._place = error.pos
                    raise self._broken(f"{error.msg} at column {error.colno}") from None
            except ValueError as error:
                raise self._broken(str(error)) from None
            except RecursionError:
                raise self._broken("it is nested too deeply") from None
            else:
                if end < len(self._text) or self._is_over:
                    self._place = end
                    return element
            if len(self._text) - self._place > 2 * _LONGEST_ROW:
                raise self._broken(f"an element is longer than {_LONGEST_ROW:,} bytes")
            self._read()

    def _next(self, expected: str = "") -> str:
        """Move to the next character that is not a space; "" at the end."""
        while True:
            space = _SPACE.match(self._text, self._place)
            self._place = space.end() if space else self._place
            if self._place < len(self._text) or self._is_over:
                return self._text[self._place : self._place + 1]
            self._read()

    def _read(self) -> None:
        """As much again as there is, so that a long element is decoded a few times alone."""
        data = self._file.read(max(_CHUNK, len(self._text)))
        self._is_over = not data
        data = self._rest + data
        self._rest = b""
        try:
            self._text += data.decode("utf-8")
        except UnicodeDecodeError as error:
            if self._is_over or error.end < len(data) or error.reason != "unexpected end of data":
                line = self._line + self._text.count("\n") + data.count(b"\n", 0, error.start)
                raise RowsError(f"{self._location}, line {line}: {not_utf8(data)}") from None
            self._text += data[: error.start].decode("utf-8")
            self._rest = data[error.start :]

    def _forget(self) -> None:
        if self._place > _CHUNK:
            self._line += self._text.count("\n", 0, self._place)
            self._text, self._place = self._text[self._place :], 0

    def _broken(self, message: str) -> RowsError:
        line = self._line + self._text.count("\n", 0, self._place)
        return RowsError(f"{self._location}, line {line}: is not valid JSON: {message}")


def csv_records(file: IO[bytes], *, tabs: bool = False) -> Iterator[Record]:
    """Yield the rows of a CSV file under its header; with `tabs`, of a TSV file, without quotes.

    Raises RowsError for an invalid header.
    """
    # Unclosed quotes are reported by strict mode, before a field is as long.
    csv.field_size_limit(_LONGEST_ROW)
    whole = _bounded_lines(file)
    first = next(whole, b"")
    row_bytes = 0

    def decoded() -> Iterator[str]:
        # Bytes that are not UTF-8 become lone surrogates here, and an error at their row.
        nonlocal row_bytes
        for index, line in enumerate(chain([first], whole)):
            row_bytes += len(line)
            if row_bytes > _LONGEST_ROW:
                raise RowsError(
                    f"{file.name}, line {number}: a row is longer than {_LONGEST_ROW:,} bytes; "
                    "what comes after it cannot be read"
                )
            line = line if index else line.removeprefix(_BOM)
            yield line.decode("utf-8", "surrogateescape").replace("\r\n", "\n")

    lines = decoded()
    reader = (
        csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        if tabs
        else csv.reader(lines, strict=True, delimiter=_delimiter(first))
    )
    header: list[str] = []
    while True:
        number, row_bytes = reader.line_num + 1, 0
        try:
            row = next(reader)
            wrong = _csv_fault(row, header)
        except StopIteration:
            return
        except csv.Error as error:
            is_break = "new-line" in str(error)  # csv's own words are for programmers
            fault = "a field without quotes holds a line break" if is_break else error
            row, wrong = [""], f"is not valid CSV: {fault}"
        if not row:
            continue
        if wrong and not header:
            raise RowsError(f"{file.name}, line {number}: {wrong}")
        if not header:
            header = row
        else:
            yield number, wrong or dict(zip(header, row, strict=True))


def _delimiter(header: bytes) -> str:
    """What separates most columns; a comma, where another mark does not separate more."""
    return max(",;\t", key=lambda mark: header.count(mark.encode()))


def _csv_fault(row: list[str], header: list[str]) -> str:
    """What is wrong with a row, in words. header: None when the row is the header."""
    if any(re.search("[\udc80-\udcff]", field) for field in row):
        return not_utf8("".join(row).encode("utf-8", "surrogateescape"))
    if not header:
        repeated = next((name for name in row if row.count(name) > 1), None)
        return "" if repeated is None else f"two columns are named {quoted(repeated)}"
    return "" if len(row) == len(header) else f"has {len(row)} fields, expected {len(header)}"


def _parquet_rows(path: Path) -> FileRows:
    require("pyarrow")
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        with open_named(path) as packed, ParquetFile(packed) as file:
            for batch in file.iter_batches(batch_size=_rows_at_once(file.metadata)):
                for fields in _rows_of(batch):
                    number += 1
                    location = f"{path}, row {number}"
                    if isinstance(fields, str):
                        yield BadRow("not readable", f"{location}: {fields}", number)
                    else:
                        yield Row(location, _without_nulls(fields), number)
    except OSError as error:
        raise RowsError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ArrowException as error:
        raise RowsError(f"{path}: is not a whole Parquet file: {error}") from None


def _rows_at_once(metadata: Any) -> int:
    """Rows whose values surely fit into a gigabyte: one that is stored once may be that of each."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    longest = max((group.total_byte_size for group in groups), default=1)
    return min(max(2**30 // max(longest, 1), 1), 256)


def _rows_of(batch: Any) -> Iterator[dict[str, Any] | str]:
    """The rows of a batch, or what is wrong with them."""
    if batch.nbytes <= _LONGEST_ROW:
        try:
            yield from batch.to_pylist()
            return
        except (ValueError, OverflowError):
            pass  # of one of the rows, which is to be named
    for number in range(batch.num_rows):
        try:
            (fields,) = batch.slice(number, 1).to_pylist()
        except (ValueError, OverflowError) as error:
            yield f"has a value that cannot be read: {error}"
        else:
            is_long = sum(len(str(value)) for value in fields.values()) > _LONGEST_ROW
            yield f"is longer than {_LONGEST_ROW:,} bytes" if is_long else fields


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """A row without the fields of objects in it that only other rows have: a column has one type
    for all its objects.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(part) for name, part in value.items() if part is not None}
        return [plain(part) for part in value] if isinstance(value, list) else value

    return {name: plain(value) for name, value in fields.items()}


def _parquet_labels(path: Path) -> Labels:
    """The names of labels that `datasets` writes into a Parquet file."""
    require("pyarrow")
    from pyarrow import ArrowException
    from pyarrow.parquet import read_schema

    try:
        with open_named(path) as file:
            known = parse_json((read_schema(file).metadata or {}).get(b"huggingface", b"{}"))
        features = known.get("info", {}).get("features", {})
        return {n: tuple(feature["names"]) for n, feature in features.items() if "names" in feature}
    except (OSError, ArrowException, ValueError, AttributeError, TypeError):
        return {}  # reading the rows says what is wrong


READERS: Mapping[str, Callable[[Path], FileRows]] = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), partial(_record_rows, _json_records)),
    ".csv": partial(_record_rows, lambda file, location: csv_records(file, tabs=False)),
    ".tsv": partial(_record_rows, lambda file, location: csv_records(file, tabs=True)),
    ".parquet": _parquet_rows,
    ".txt": _text_rows,
}
"""Every type of file by its suffix, and the reader of its rows."""


def _hub_table(source: RowSource) -> RowTable:
    try:
        require("datasets")
        import datasets

        rows = datasets.load_dataset(source.path, source.subset or None, split=source.split)
    except Exception as error:  # the library raises many types of errors
        fault = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RowsError(
            f"{source.path}: there is no such file or folder, and as a data set of the hub it "
            f"cannot be loaded: {fault}"
        ) from None
    name = f"{source.path} ({source.split})"

    def numbered() -> FileRows:
        for number, fields in enumerate(rows, 1):
            yield Row(f"{name}, row {number}", _without_nulls(fields), number)

    labels = {
        name: tuple(feature.names)
        for name, feature in (getattr(rows, "features", None) or {}).items()
        if isinstance(feature, datasets.ClassLabel)
    }
    return RowTable(name, numbered, labels)


def renamed(table: RowTable, columns: Mapping[str, str]) -> Iterator[Row | BadRow]:
    """The rows of a table with the field names that `columns` maps them to.

    Raises RowsError when the first row lacks a named column.
    """
    checked = False
    for row in table.rows():
        if isinstance(row, Row) and columns:
            if not checked:
                for name, column in columns.items():
                    if column not in row.fields:
                        raise RowsError(
                            f"{row.location}: there is no column {quoted(column)} to take {name!r} "
                            f"from{did_you_mean(column, row.fields)}; there are {names(row.fields)}"
                        )
                checked = True
            others = {k: v for k, v in row.fields.items() if k not in columns.values()}
            taken = {n: row.fields[c] for n, c in columns.items() if c in row.fields}
            row = Row(row.location, others | taken, row.number)
        yield row


def label_of(value: object, names: Sequence[str], location: str, first: int = 0) -> object:
    """The name of a label that is written as its number; another value unchanged.

    names: of all labels, in their order. first: the number of the first. Raises BadRow for a number
    that no label has.
    """
    is_number = isinstance(value, int) and not isinstance(value, bool)
    text = value.strip() if isinstance(value, str) else ""
    if not names or (not is_number and (text in names or not re.fullmatch(r"-?\d+", text))):
        return value
    number = int(text or str(value))
    if 0 <= number - first < len(names):
        return names[number - first]
    hint = "; a split without labels has -1" if number == -1 else ""
    known = ", ".join(f"{place} {quoted(name)}" for place, name in enumerate(names[:20], first))
    raise BadRow("unknown label", f"{location}: {number} is not a label; there are {known}{hint}")


def names(fields: Iterable[str]) -> str:
    """Names in quotes, separated by commas; "none" for none."""
    return ", ".join(quoted(str(name)) for name in fields) or "none"
