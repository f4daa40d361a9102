"""Pools of demonstrations from files: every row once, with a sentence on each contradiction."""

import sys
from array import array
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from chatapp.common.userfiles import did_you_mean, quoted
from chatapp.prompting.examples import (
    PLAIN_COLUMNS,
    Columns,
    Pool,
    PoolRow,
    PromptError,
    read_rows,
)


def read_pool(path: Path, labels: Iterable[str] = (), columns: Columns = PLAIN_COLUMNS) -> Pool:
    """Read a JSONL or CSV file of examples; for rows see `read_rows`.

    labels: the only allowed outputs, if given. Raises PromptError at the first bad row, and for a
    file without rows.
    """
    return collect(read_rows(path, columns), str(path), "line", labels)


def collect(
    rows: Iterable[tuple[int, PoolRow | PromptError]],
    source: str,
    unit: str,
    labels: Iterable[str],
) -> Pool:
    """Collect rows into a pool. unit: of the row numbers in `source`, such as lines."""
    allowed = frozenset(labels)
    inputs: list[str] = []
    outputs: list[str] = []
    columns: dict[str, list[str]] = {}
    numbers = array("q")
    fields = None
    for number, row in rows:
        if isinstance(row, PromptError):
            raise row
        if allowed and row.output not in allowed:
            raise PromptError(
                f"{source}, {unit} {number}: {quoted(row.output)} is not one of the labels"
                f"{did_you_mean(row.output, allowed)}"
            )
        inputs.append(row.input)
        # All rows with a label share one object in memory.
        outputs.append(sys.intern(row.output))
        numbers.append(number)
        fields = fields or row.fields
        for name, value in row.values.items():
            columns.setdefault(name, []).append(value)
    if fields is None:
        raise PromptError(f"{source}: contains no examples")
    pool = Pool(inputs, outputs, fields, source, columns=columns)
    return _distinct(pool, lambda index: f"{unit} {numbers[index]}", labelled=bool(allowed))


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
