"""Inputs for `run` and test items for `eval`, from files and from standard input.

Invariant: every row of a file comes out once, with the line where it begins, as an input or as the
sentence on its fault.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from chatapp.common.userfiles import did_you_mean, quoted
from chatapp.prompting.examples import (
    INPUT_FIELDS,
    POOL_SUFFIXES,
    Example,
    PromptError,
    parse_row,
    read_rows,
)

_BOM = b"\xef\xbb\xbf"

Inputs = Iterator[tuple[int, str | PromptError]]
"""Line numbers, and on each line an input or its error."""


def read_inputs(path: Path) -> Inputs:
    """The inputs in a file, one at a time.

    JSONL and CSV have the format of pools, with or without outputs; in any other file each line
    that is not blank is an input. A pipe is read like `read_stream`. Raises PromptError when the
    file itself cannot be read.
    """
    if path.suffix.lower() in POOL_SUFFIXES:
        for line, row in read_rows(path, output_required=False):
            yield line, row if isinstance(row, PromptError) else row.input
        return
    try:
        with path.open("rb") as file:
            yield from (_plain if path.is_file() else read_stream)(file, str(path))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PromptError(f"{path}: cannot be read: {reason}") from None


def read_stream(lines: Iterable[bytes], source: str = "standard input") -> Inputs:
    """The inputs in a stream: JSON Lines if the first line is such a row, else plain."""
    is_json: bool | None = None
    for number, text in _plain(lines, source):
        if isinstance(text, PromptError):
            yield number, text
            continue
        record = _record(text)
        if is_json is None:
            is_json = isinstance(record, dict) and any(name in record for name in INPUT_FIELDS)
        if not is_json:
            yield number, text
            continue
        location = f"{source}, line {number}"
        if not isinstance(record, dict):
            yield number, PromptError(f"{location}: expected a JSON object like those before it")
            continue
        try:
            yield number, parse_row(record, location, output_required=False).input
        except PromptError as error:
            yield number, error


def _plain(lines: Iterable[bytes], source: str) -> Inputs:
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
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Item(Example):
    """A test item; `line` is its line in the file."""

    line: int


def read_test(path: Path, labels: tuple[str, ...] = ()) -> list[Item]:
    """The test items in a JSONL or CSV file; unlike in a pool, items may repeat.

    labels: the only allowed outputs, if given. Raises PromptError at the first bad row, because a
    score over a part of the items is no score of the file.
    """
    items = []
    for line, row in read_rows(path):
        if isinstance(row, PromptError):
            raise row
        if labels and row.output not in labels:
            raise PromptError(
                f"{path}, line {line}: {quoted(row.output)} is not one of the labels"
                f"{did_you_mean(row.output, labels) or '; there are ' + ', '.join(labels)}"
            )
        items.append(Item(row.input, row.output, line))
    if not items:
        raise PromptError(f"{path}: contains no test items")
    return items
