"""Examples from files: rows of input and output, read as a stream into two lists.

Invariant: every row of a pool was valid UTF-8 and had exactly one input and one output, both
strings; anything else is rejected with one sentence that names the file and the line. A row that
occurs twice in the file is in the pool once.
"""

import csv
import difflib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import IO, Any

from chatapp.common.userfiles import UserError, encoding_hint, open_named, quoted, reason, shown
from chatapp.prompting.published import FORMATS, FormatFault

INPUT_FIELDS = ("input", "context", "prompt", "question", "text")
OUTPUT_FIELDS = ("output", "completion", "target", "answer", "label")
POOL_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv")

_BOM = b"\xef\xbb\xbf"

# Characters around a text that do not change its meaning. A minus or a currency sign does.
_EDGE = " \"'`“”‘’‚„«»()[]{}.,;:!?¡¿"


class PromptError(UserError, ValueError):
    """A prompt file or a pool that cannot be used."""


@dataclass(frozen=True, slots=True)
class Example:
    """An input with its correct output.

    values: of an input with several fields, by their names, whose values together are `input`.
    choices: the possible outputs, if the item has its own. answers: all correct outputs, if there
    are several; `output` is the first.
    """

    input: str
    output: str
    values: Mapping[str, str] = field(default_factory=dict, hash=False, kw_only=True)
    choices: tuple[str, ...] = field(default=(), kw_only=True)
    answers: tuple[str, ...] = field(default=(), kw_only=True)

    def value(self, name: str) -> str:
        """What stands in a field of the input: the input itself where it has one value."""
        return self.values.get(name, self.input)


Query = str | Example
"""What is asked about; a text stands in every field of the input."""


def item_of(query: Query) -> Example:
    """A query as an item without an output."""
    return query if isinstance(query, Example) else Example(query, "")


@dataclass(frozen=True, slots=True)
class Columns:
    """The fields that a row needs.

    inputs: of its input. output: of its answer. The names "input" and "output" stand for any of
    INPUT_FIELDS and OUTPUT_FIELDS. choices: the field with the possible outputs of the item, if
    any. published: the format of a public data set (see `published`), if the file has one.
    """

    inputs: tuple[str, ...] = ("input",)
    output: str = "output"
    choices: str = ""
    published: str = ""


PLAIN_COLUMNS = Columns()
"""An input and an output, by any of their names."""


@dataclass(frozen=True, slots=True)
class PoolRow(Example):
    """A row of a file; `output` is empty if it was optional and absent.

    fields: the names of the (first) input and the output in the file.
    """

    fields: tuple[str, str] = ("input", "output")


def normalise(text: str) -> str:
    """The form in which two inputs count as equal.

    Unicode NFKC, case folded, runs of white space as one space, quotes, brackets and punctuation
    removed at both ends. A text of nothing else stays.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    # Case folding can separate a character from its accent again.
    folded = " ".join(unicodedata.normalize("NFKC", folded).split())
    return folded.strip(_EDGE) or folded


@dataclass(frozen=True, slots=True)
class Pool:
    """Examples to choose demonstrations from, by index.

    inputs, outputs: equally long. fields: their names in the first row. columns: the values of
    inputs with several fields, by name, each as long as the inputs. source: where the rows come
    from. repeats: rows left out because another has the same input and output. conflicts: a
    sentence on each input that has two labels.
    """

    inputs: list[str]
    outputs: list[str]
    fields: tuple[str, str] = ("input", "output")
    source: str = ""
    repeats: int = 0
    conflicts: tuple[str, ...] = ()
    columns: Mapping[str, list[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Example:
        values = {name: column[index] for name, column in self.columns.items()}
        return Example(self.inputs[index], self.outputs[index], values=values)


def read_rows(
    path: Path, columns: Columns = PLAIN_COLUMNS, *, output_required: bool = True
) -> Iterator[tuple[int, PoolRow | PromptError]]:
    """Read a JSONL or CSV file row by row, each with the line where it begins.

    A row is a JSON object, or a CSV row under a header, with the columns; other fields are ignored.
    White space around the values is removed. A bad row is yielded as the error that explains it,
    and reading continues. Raises PromptError when the file itself cannot be read.
    """
    is_json = bool(columns.published) and path.suffix.lower() in (".json", ".txt")
    if path.suffix.lower() not in POOL_SUFFIXES and not is_json:
        raise PromptError(f"{path}: expected a file of examples ending in .jsonl or .csv")
    if "\0" in str(path):
        raise PromptError(f"{quoted(str(path))}: holds a NUL character and is not a valid path")
    records = csv_records if path.suffix.lower() == ".csv" else jsonl_records
    if is_json:
        records = json_records
    labels = _labels_beside(path) if columns.published == "piqa" else iter(())
    try:
        with open_named(path) as file:
            for line, record in records(file):
                location = f"{path}, line {line}"
                try:
                    if isinstance(record, str):
                        raise PromptError(f"{location}: {record}")
                    label = next(labels, None)
                    record = record if label is None else {"label": label, **record}
                    for item in _items(record, columns.published):
                        row = parse_row(item, location, columns, output_required=output_required)
                        yield line, row
                except FormatFault as error:
                    yield line, PromptError(f"{location}: {error}")
                except PromptError as error:
                    yield line, error
    except OSError as error:
        raise PromptError(f"{path}: cannot be read: {reason(error)}") from None


def _items(record: Mapping[Any, Any], published: str) -> Iterable[Mapping[Any, Any]]:
    return FORMATS[published](record) if published else [record]


def _labels_beside(path: Path) -> Iterator[str]:
    """The lines of NAME-labels.lst beside NAME.jsonl; none if there is no such file."""
    beside = path.with_name(f"{path.stem}-labels.lst")
    return iter(beside.read_text("utf-8", "replace").split() if beside.is_file() else ())


def parse_row(
    record: Mapping[Any, Any],
    location: str,
    columns: Columns = PLAIN_COLUMNS,
    *,
    output_required: bool = True,
) -> PoolRow:
    """Parse one row. Raises PromptError, beginning with `location`, when it is not an example."""
    values: dict[str, str] = {}
    names: list[str] = []
    for column in columns.inputs:
        names.append(_column(record, column, location))
        values[column] = _text(record[names[-1]], names[-1], location)
    text = "\n".join(values.values())
    several = values if len(values) > 1 else {}
    row = PoolRow(text, "", (names[0], columns.output), values=several)
    if columns.choices:
        row = replace(row, choices=_texts(record, columns.choices, location))
    if "answers" in record:
        answers = _texts(record, "answers", location)
        return replace(row, output=answers[0], answers=answers)
    given = OUTPUT_FIELDS if columns.output == "output" else (columns.output,)
    if not output_required and not any(name in record for name in given):
        return row
    output = _column(record, columns.output, location)
    answer = _text(record[output], output, location)
    if row.choices and answer not in row.choices:
        raise PromptError(f"{location}: {quoted(answer)} is not one of the choices of its item")
    return replace(row, output=answer, fields=(names[0], output))


def _texts(record: Mapping[Any, Any], name: str, location: str) -> tuple[str, ...]:
    """A list of different texts. Raises PromptError."""
    values = record[_column(record, name, location)]
    if not isinstance(values, list) or not values:
        raise PromptError(f"{location}: {name!r} is {shown(values)}, expected a list of strings")
    texts = tuple(_text(value, name, location) for value in values)
    if len(set(texts)) < len(texts):
        raise PromptError(f"{location}: {name!r} holds a text twice")
    return texts


def _column(record: Mapping[Any, Any], name: str, location: str) -> str:
    """The field of a record that holds a column. Raises PromptError when there is none."""
    if name == "input":
        return _field(record, INPUT_FIELDS, "input", location)
    if name == "output":
        return _field(record, OUTPUT_FIELDS, "output", location)
    if name not in record:
        present = ", ".join(quoted(key) for key in list(record)[:10] if isinstance(key, str))
        raise PromptError(
            f"{location}: no field {quoted(name)}, which the layout of the prompt file uses"
            + (f"; there are {present}" if present else "")
        )
    return name


def _field(record: Mapping[Any, Any], names: tuple[str, ...], role: str, location: str) -> str:
    present = [name for name in names if name in record]
    if len(present) > 1:
        one, other = present[:2]
        raise PromptError(f"{location}: holds both {one!r} and {other!r}; keep one {role}")
    if not present:
        candidates = [key for key in record if isinstance(key, str)]
        close = [key for key in candidates if difflib.get_close_matches(key[:100].lower(), names)]
        hint = f", found {quoted(close[0])}" if close else ""
        raise PromptError(f"{location}: no {role}; expected a field named {_either(names)}{hint}")
    return present[0]


def _either(names: tuple[str, ...]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1]


def _text(value: object, field: str, location: str) -> str:
    if not isinstance(value, str):
        hint = "; write it in quotes" if isinstance(value, bool | int | float) else ""
        raise PromptError(f"{location}: {field!r} is {shown(value)}, expected a string{hint}")
    value = value.strip()
    if not value:
        raise PromptError(f"{location}: {field!r} is empty")
    if "\0" in value:
        raise PromptError(f"{location}: {field!r} holds a NUL character, which no text has")
    return value


Record = tuple[int, Mapping[Any, Any] | str]
"""The line where a record begins, and its fields or the reason why it has none."""


def jsonl_records(file: IO[bytes]) -> Iterator[Record]:
    """Yield the objects of a JSONL file, one per line; blank lines are skipped."""
    # Lines of bytes, because lines of text would also end at U+2028 and similar characters.
    for number, line in enumerate(file, 1):
        if number == 1:
            line = line.removeprefix(_BOM)
        if line.strip():
            yield number, _jsonl_record(line)


def json_records(file: IO[bytes]) -> Iterator[Record]:
    """The objects of a JSON file: of a list, of the list `Data` of an object, or the object.

    The line is the number of the object.
    """
    try:
        content = json.loads(file.read().decode("utf-8-sig"), object_pairs_hook=unique_keys)
    except RecursionError:
        yield 1, "is nested too deeply"
        return
    except ValueError as error:
        yield 1, f"is not valid JSON: {str(error).split(';')[0]}"
        return
    if isinstance(content, dict) and isinstance(content.get("Data"), list):
        content = content["Data"]
    for number, record in enumerate(content if isinstance(content, list) else [content], 1):
        is_object = isinstance(record, dict)
        yield number, record if is_object else f"is {shown(record)}, expected a JSON object"


def _jsonl_record(line: bytes) -> Mapping[Any, Any] | str:
    try:
        text = line.decode("utf-8").rstrip()  # so an error at the end has a column of this line
        record = json.loads(text, object_pairs_hook=unique_keys)
    except UnicodeDecodeError:
        return not_utf8(line)
    except RecursionError:
        return "is nested too deeply"
    except json.JSONDecodeError as error:
        return f"is not valid JSON: {error.msg} at column {error.colno}"
    except ValueError as error:
        return f"is not valid JSON: {str(error).split(';')[0]}"
    if not isinstance(record, dict):
        hint = "; write one object per line" if isinstance(record, list) else ""
        return f"is {shown(record)}, expected a JSON object{hint}"
    return record


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {quoted(repeated)} occurs twice")
    return record


def not_utf8(data: bytes) -> str:
    """The sentence that bytes are not UTF-8, with a guess at their encoding."""
    return f"is not UTF-8 text {encoding_hint(data)}"


def csv_records(file: IO[bytes], *, tabs: bool = False) -> Iterator[Record]:
    """Yield the rows of a CSV file under its header; with `tabs`, of a TSV file, without quotes.

    Raises PromptError for an invalid header.
    """
    # A field may have any length; the module's limit guards against unclosed quotes, which strict
    # mode reports.
    csv.field_size_limit(2**31 - 1)
    first = file.readline()
    # Bytes that are not UTF-8 become lone surrogates here, and an error at their row.
    lines = (
        (line if number else line.removeprefix(_BOM))
        .decode("utf-8", "surrogateescape")
        .replace("\r\n", "\n")
        for number, line in enumerate(chain([first], file))
    )
    reader = (
        csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        if tabs
        else csv.reader(lines, strict=True, delimiter=_delimiter(first))
    )
    header: list[str] = []
    while True:
        number = reader.line_num + 1
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
            raise PromptError(f"{file.name}, line {number}: {wrong}")
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
