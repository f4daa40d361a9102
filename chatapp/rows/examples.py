"""Examples of prompt files and evaluations: rows of input and output, from any file of rows."""

import json
import sys
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from chatapp.common.userfiles import did_you_mean, quoted, shown
from chatapp.rows.published import FORMATS, FormatFault
from chatapp.rows.reading import (
    READERS,
    BadRow,
    FileSource,
    Labels,
    RowsError,
    RowTable,
    either,
    label_of,
    names,
    renamed,
    suffix,
    tables,
)

INPUT_FIELDS = ("input", "context", "prompt", "question", "text")
OUTPUT_FIELDS = ("output", "completion", "target", "answer", "label")
OTHER_INPUTS = ("sentence", "review", "premise", "query", "problem", "title")
OTHER_OUTPUTS = ("sentiment", "response", "solution", "labels", "class", "category", "coarse_label")
POOL_SUFFIXES = tuple(name for name in READERS if name != ".txt")

BadRows = Literal["raise", "drop"]

# Characters around a text that do not change its meaning. A minus or a currency sign does.
_EDGE = " \"'`“”‘’‚„«»()[]{}.,;:!?¡¿"


PromptError = RowsError
"""A prompt file or a pool that cannot be used: the same, because it is a file of rows as well."""


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
    any. published: the format of a public data set (see `published`), if the file has one. columns:
    of the file, by the field that is taken from it. labels: the only possible outputs, if there are
    such; a number stands for the one in its place. bad_rows: whether one ends the reading.
    """

    inputs: tuple[str, ...] = ("input",)
    output: str = "output"
    choices: str = ""
    published: str = ""
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)
    labels: tuple[str, ...] = ()
    bad_rows: BadRows = "raise"


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
    sentence on each input that has two labels. dropped: bad rows left out, by reason.
    """

    inputs: list[str]
    outputs: list[str]
    fields: tuple[str, str] = ("input", "output")
    source: str = ""
    repeats: int = 0
    conflicts: tuple[str, ...] = ()
    columns: Mapping[str, list[str]] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Example:
        values = {name: column[index] for name, column in self.columns.items()}
        return Example(self.inputs[index], self.outputs[index], values=values)


def read_rows(
    path: Path, columns: Columns = PLAIN_COLUMNS, *, output_required: bool = True
) -> Iterator[tuple[int, PoolRow | BadRow]]:
    """Read a file of rows, a folder or a hub data set, each row with the line where it begins.

    White space around the values is removed, and other fields are ignored. A bad row is yielded as
    the error that explains it, and reading continues. Raises RowsError when the file itself cannot
    be read.
    """
    beside = _labels_beside(path) if columns.published == "piqa" else iter(())
    for table in _tables(path, columns):
        for row in renamed(table, columns.columns):
            if isinstance(row, BadRow):
                yield row.number, row
                continue
            label = next(beside, None)
            fields = row.fields if label is None else {"label": label, **row.fields}
            try:
                for item in FORMATS[columns.published](fields) if columns.published else [fields]:
                    yield (
                        row.number,
                        parse_row(
                            item,
                            row.location,
                            columns,
                            table.labels,
                            output_required=output_required,
                        ),
                    )
            except FormatFault as error:
                yield row.number, BadRow("another format", f"{row.location}: {error}")
            except BadRow as error:
                yield row.number, error


def source_at(path: Path) -> FileSource:
    """A file or folder; or, where there is none, a hub data set as ID, ID:SUBSET or
    ID:SUBSET:SPLIT.
    """
    if path.exists() or suffix(path) in READERS:
        return FileSource(str(path))
    return FileSource(*str(path).split(":", 2))


def _tables(path: Path, columns: Columns) -> list[RowTable]:
    if "\0" in str(path):
        raise RowsError(f"{quoted(str(path))}: holds a NUL character and is not a valid path")
    kind, kinds = suffix(path), (*POOL_SUFFIXES, *([".txt"] if columns.published else []))
    is_id = len(path.parts) == 2 and not path.exists()
    if kind and kind not in kinds and not path.is_dir() and not is_id:
        raise RowsError(f"{path}: expected a file of examples named {either(POOL_SUFFIXES)}")
    return tables(source_at(path))


def _labels_beside(path: Path) -> Iterator[str]:
    """The lines of NAME-labels.lst beside NAME.jsonl; none if there is no such file."""
    beside = path.with_name(f"{path.stem}-labels.lst")
    return iter(beside.read_text("utf-8", "replace").split() if beside.is_file() else ())


def parse_row(
    record: Mapping[Any, Any],
    location: str,
    columns: Columns = PLAIN_COLUMNS,
    named: Labels | None = None,
    *,
    output_required: bool = True,
) -> PoolRow:
    """Parse one row. named: the names of the numbers in columns of the file.

    Raises BadRow, beginning with `location`, when it is not an example.
    """
    values: dict[str, str] = {}
    present: list[str] = []
    for column in columns.inputs:
        present.append(_column(record, column, location))
        values[column] = _text(record[present[-1]], present[-1], location)
    text = "\n".join(values.values())
    several = values if len(values) > 1 else {}
    row = PoolRow(text, "", (present[0], columns.output), values=several)
    if columns.choices:
        row = replace(row, choices=_texts(record, columns.choices, location))
    if "answers" in record:
        answers = _texts(record, "answers", location)
        return replace(row, output=answers[0], answers=answers)
    given = (*OUTPUT_FIELDS, *OTHER_OUTPUTS) if columns.output == "output" else (columns.output,)
    if not output_required and not any(name in record for name in given):
        return row
    output = _column(record, columns.output, location)
    answer = _answer(record[output], output, location, columns, named or {}, output_required)
    if row.choices and answer not in row.choices:
        problem = f"{location}: {quoted(answer)} is not one of the choices of its item"
        raise BadRow("unknown label", problem)
    return replace(row, output=answer, fields=(present[0], output))


def _answer(
    value: object, name: str, location: str, columns: Columns, named: Labels, is_checked: bool
) -> str:
    """The text of an answer; a number names a label, by the file's own names or by their order."""
    column, labels = columns.columns.get(name, name), columns.labels
    own = named.get(column) or labels
    own = labels if labels and not set(own) <= set(labels) else own
    first = 1 if column == "Class Index" else 0  # of AG News as a CSV file
    answer = _text(label_of(value, own, location, first), name, location)
    if labels and is_checked and answer not in labels:
        near = did_you_mean(answer, labels) or did_you_mean(answer.casefold(), labels)
        problem = f"{location}: {quoted(answer)} is not one of the labels"
        raise BadRow("unknown label", f"{problem}{near or f'; there are {names(labels[:20])}'}")
    return answer


def _texts(record: Mapping[Any, Any], name: str, location: str) -> tuple[str, ...]:
    """A list of different texts. Raises BadRow."""
    values = record[_column(record, name, location)]
    if not isinstance(values, list) or not values:
        problem = f"{location}: {name!r} is {shown(values)}, expected a list of strings"
        raise BadRow(f"{name} is not a list", problem)
    texts = tuple(_text(value, name, location) for value in values)
    if len(set(texts)) < len(texts):
        raise BadRow(f"repeated {name}", f"{location}: {name!r} holds a text twice")
    return texts


def _column(record: Mapping[Any, Any], name: str, location: str) -> str:
    """The field of a record that holds a column. Raises BadRow when there is none."""
    if name == "input":
        return _field(record, INPUT_FIELDS, OTHER_INPUTS, "input", location)
    if name == "output":
        return _field(record, OUTPUT_FIELDS, OTHER_OUTPUTS, "output", location)
    if name not in record:
        problem = f"no field {quoted(name)}, which the layout of the prompt file uses"
        raise BadRow(f"no {name}", f"{location}: {problem}; {_present(record)}")
    return name


def _present(record: Mapping[Any, Any]) -> str:
    """The columns of a record, and the line that names them in a prompt file."""
    present = [str(name) for name in list(record)[:10] if name is not None]
    if len(present) < 2:
        return f"there are {names(present)}"
    ends = (json.dumps(name if len(name) <= 40 else "…") for name in (present[0], present[-1]))
    example = "columns = {{input = {}, output = {}}}".format(*ends)
    return f"there are {names(present)}; name the right ones in the prompt file, such as {example}"


def _field(
    record: Mapping[Any, Any],
    known: tuple[str, ...],
    others: tuple[str, ...],
    role: str,
    place: str,
) -> str:
    present = [name for name in known if name in record] or [n for n in others if n in record][:1]
    if len(present) > 1:
        one, other = present[:2]
        raise BadRow(f"two {role}s", f"{place}: holds both {one!r} and {other!r}; keep one {role}")
    if not present:
        problem = f"no {role}; expected a field named {either(known)}"
        raise BadRow(f"no {role}", f"{place}: {problem}; {_present(record)}")
    return present[0]


def _text(value: object, field: str, location: str) -> str:
    if not isinstance(value, str):
        hint = "; write it in quotes" if isinstance(value, bool | int | float) else ""
        hint += ', or name the numbers: labels = ["…", "…"]' if hint and field != "input" else ""
        problem = f"{location}: {field!r} is {shown(value)}, expected a string{hint}"
        raise BadRow(f"{field} is not text", problem)
    value = value.strip()
    if not value:
        raise BadRow(f"empty {field}", f"{location}: {field!r} is empty")
    if "\0" in value:
        problem = f"{location}: {field!r} holds a NUL character, which no text has"
        raise BadRow(f"NUL in {field}", problem)
    return value


def read_pool(path: Path, columns: Columns = PLAIN_COLUMNS) -> Pool:
    """Read a file of examples; for rows see `read_rows`.

    Raises RowsError at the first bad row unless they are dropped, and for a file without rows.
    """
    return collect(read_rows(path, columns), str(path), "line", columns)


def collect(
    rows: Iterable[tuple[int, PoolRow | BadRow]],
    source: str,
    unit: str,
    columns: Columns = PLAIN_COLUMNS,
) -> Pool:
    """Collect rows into a pool. unit: of the row numbers in `source`, such as lines."""
    inputs: list[str] = []
    outputs: list[str] = []
    values: dict[str, list[str]] = {}
    numbers = array("q")
    fields = None
    dropped: Counter[str] = Counter()
    for number, row in rows:
        if isinstance(row, BadRow):
            if columns.bad_rows == "raise":
                raise row
            dropped[row.reason] += 1
            continue
        inputs.append(row.input)
        # All rows with a label share one object in memory.
        outputs.append(sys.intern(row.output))
        numbers.append(number)
        fields = fields or row.fields
        for name, value in row.values.items():
            values.setdefault(name, []).append(value)
    if fields is None:
        raise PromptError(f"{source}: contains no examples")
    pool = Pool(inputs, outputs, fields, source, columns=values, dropped=dropped)
    labelled = bool(columns.labels)
    return _distinct(pool, lambda index: f"{unit} {numbers[index]}", labelled=labelled)


def _distinct(pool: Pool, location: Callable[[int], str], *, labelled: bool) -> Pool:
    """Remove repeated rows, and describe each input that has two labels."""
    repeats: set[int] = set()
    conflicts: list[str] = []
    for indices in _with_equal_inputs(pool.inputs):
        first: dict[str, int] = {}
        repeats.update(i for i in indices if first.setdefault(pool.outputs[i], i) != i)
        # Several texts may be right, but only one label.
        if labelled and len(first) > 1:
            (one, earlier), (other, later) = list(first.items())[:2]
            conflicts.append(
                f"{pool.source}, {location(later)}: {quoted(pool.inputs[later])} has the label "
                f"{quoted(other)}, in {location(earlier)} {quoted(one)}"
            )
    if not repeats and not conflicts:
        return pool
    kept = [index for index in range(len(pool)) if index not in repeats]
    return replace(
        pool,
        inputs=[pool.inputs[index] for index in kept],
        outputs=[pool.outputs[index] for index in kept],
        columns={name: [values[i] for i in kept] for name, values in pool.columns.items()},
        repeats=len(repeats),
        conflicts=tuple(conflicts),
    )


def _with_equal_inputs(inputs: list[str]) -> list[list[int]]:
    """The indices of each input that occurs more than once, in rising order."""
    import numpy as np  # here, because help and completion import this module without it

    # Sorted hashes take a tenth of the memory of a dictionary of texts.
    hashes = np.fromiter(map(hash, inputs), dtype=np.int64, count=len(inputs))
    order = np.argsort(hashes, kind="stable")
    alike = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    groups: dict[str, list[int]] = {}
    for index in sorted({*order[alike].tolist(), *order[alike + 1].tolist()}):
        groups.setdefault(inputs[index], []).append(index)
    return [indices for indices in groups.values() if len(indices) > 1]
