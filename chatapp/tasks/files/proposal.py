"""A prompt file for a pool that has none, proposed from the columns of the pool."""

import json
import os
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from chatapp.rows.examples import (
    INPUT_FIELDS,
    OTHER_INPUTS,
    OTHER_OUTPUTS,
    OUTPUT_FIELDS,
    PromptError,
    source_at,
)
from chatapp.rows.reading import Row, RowTable, names, tables

# Rows that are looked at, and the most labels that a classification has.
_ROWS, _MOST_LABELS = 1000, 20

# Inputs of two texts in the field's data sets: NLI, paraphrases, AG News, BoolQ.
_PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("title", "description"),
    ("passage", "question"),
)


def propose(pool: str, path: Path) -> str:
    """The TOML of a prompt file, to be saved at `path`, for a file of rows or a hub data set.

    Its layout names the columns of the inputs and of the answer. Answers that are few and recur are
    labels; numbers without names are called "label 0", "label 1" … At most 1,000 rows are read.
    Raises PromptError when none can be read, or no column can be the answer or the input.
    """
    table = tables(source_at(Path(pool).expanduser()))[0]
    read = list(islice(table.rows(), _ROWS))
    rows = [row.fields for row in read if isinstance(row, Row)]
    if not rows:
        raise PromptError(str(read[0]) if read else f"{pool}: has no rows")
    columns = [name for name in rows[0] if isinstance(name, str) and not {"{", "}"} & set(name)]
    answer = _known(columns, (*OUTPUT_FIELDS, *OTHER_OUTPUTS, "Class Index")) or _recurring(
        columns, rows
    )
    texts = [
        name
        for name in columns
        if name != answer and all(isinstance(row.get(name, ""), str) for row in rows)
    ]
    inputs = _inputs(texts, rows)
    if not answer or not inputs:
        role = "the answer" if inputs else "the input"
        problem = f"{pool}: no column looks like {role}; there are {names(columns[:20])}"
        raise PromptError(
            f'{problem}; name them in a prompt file: example = "{{…}}\\nLabel: {{…}}"'
        )
    titles = {name: name[:1].upper() + name[1:].replace("_", " ") for name in (*inputs, answer)}
    source = pool if Path(pool).suffix == "" else os.path.relpath(pool, path.parent)
    keys = {
        "description": f"{Path(pool).name}: {answer} of {' and '.join(inputs)}",
        "examples_file": Path(source).as_posix(),
        "example": "\n".join(f"{title}: {{{name}}}" for name, title in titles.items()),
    }
    toml = "".join(f"{key} = {_quoted(value)}\n" for key, value in keys.items())
    if labels := _labels(answer, rows, table):
        unnamed = labels[0].startswith("label ") and not table.labels.get(answer)
        hint = "  # write what the numbers mean" if unnamed else ""
        toml += f"labels = [{', '.join(map(_quoted, labels))}]{hint}\n"
    return toml + 'select = {method = "bm25", k = 4}\n'


def _known(columns: Sequence[str], known: Sequence[str]) -> str:
    """The first of the known names, in any case, that is a column; "" if none is."""
    spelled = {name.casefold(): name for name in reversed(columns)}
    return next((spelled[name.casefold()] for name in known if name.casefold() in spelled), "")


def _recurring(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """The last column with few values that recur, as labels do; "" if there is none."""
    for name in reversed([name for name in columns if name.casefold() not in ("title", "source")]):
        values = [row[name] for row in rows if isinstance(row.get(name), str | int)]
        if values and len(set(values)) <= min(_MOST_LABELS, len(rows) // 2):
            return name
    return ""


def _inputs(texts: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The columns of the input: a known pair, a known name, or the longest text."""
    for pair in _PAIRS:
        if all(columns := tuple(_known(texts, [name]) for name in pair)):
            return columns
    if name := _known(texts, (*INPUT_FIELDS, *OTHER_INPUTS)):
        return (name,)
    longest = max(texts, key=lambda name: sum(len(row.get(name, "")) for row in rows), default="")
    return (longest,) if longest else ()


def _labels(answer: str, rows: Sequence[Mapping[str, Any]], table: RowTable) -> list[str]:
    """The possible answers, in the order of their numbers; none if answers are free text."""
    if own := table.labels.get(answer):
        return list(own)
    values = {row[answer] for row in rows if isinstance(row.get(answer), str | int)}
    if not values or len(values) > min(_MOST_LABELS, max(1, len(rows) // 2)):
        return []
    if all(isinstance(value, int) or value.strip().isdecimal() for value in values):
        first = 1 if answer == "Class Index" else 0
        numbers = [int(value) for value in values]
        fits = min(numbers) >= first and max(numbers) <= _MOST_LABELS
        return [f"label {number}" for number in range(first, max(numbers) + 1)] if fits else []
    return sorted({str(value).strip() for value in values} - {""})


def _quoted(text: str) -> str:
    """A TOML string: JSON's, with the one control character that TOML refuses and JSON allows."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
