"""`finetune predict`: the answers of a run with a head to texts of the user, or a file of them."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console

from chatapp.common.foreign import parse_json, printable
from chatapp.common.paths import RUN_RECORD
from chatapp.common.userfiles import UserError, read_regular
from chatapp.engine.backends.head import HEAD_FILE, HeadModel
from chatapp.engine.models.resolving import find_model
from chatapp.rows.examples import item_of
from chatapp.rows.reading import Row
from chatapp.tasks.evaluation.inputs import read_inputs
from chatapp.tasks.evaluation.journal import Journal, JournalRow, unanswered
from finetune.config.sections import ConfigError, TrainSource
from finetune.data.formats import Labelled, read_fields, read_labelled
from finetune.objectives.heads import ROLES, answer_document
from finetune.training.record import configuration_of, read_record

STRETCH = 256
"""Rows that are answered, and then written, together."""

Input = Labelled | UserError
"""A row to answer, or its error."""


@dataclass(frozen=True, slots=True)
class Predictor:
    """A run with a head. columns: the names of its rows' fields. identity: distinguishes it from
    every other.
    """

    head: HeadModel
    columns: dict[str, str]
    identity: str

    @property
    def roles(self) -> tuple[str, ...]:
        """The fields of an input."""
        return ROLES[self.head.spec.task][:-1]

    def row(self, entry: str | dict[str, Any], location: str) -> Labelled:
        """A text, or the fields of an input, as a row. Raises BadRow and ConfigError."""
        if isinstance(entry, str):
            if len(self.roles) > 1:
                raise ConfigError(
                    f"{location}: expected a JSON object with {' and '.join(self.roles)}"
                )
            entry = {self.roles[0]: entry}
        return read_fields(Row(location, entry), self.roles)

    def read(self, path: Path) -> Iterator[Input]:
        """The inputs of a file: of a text file its lines, else its rows. Raises UserError."""
        if path.suffix.lower() == ".txt" and len(self.roles) == 1:
            for line, text in read_inputs(path):
                place = f"{path}, line {line}"
                if isinstance(text, UserError):
                    yield text
                else:
                    yield self.row(item_of(text).input, place)
            return
        source = TrainSource.model_validate({"path": str(path), "columns": self.columns})
        yield from read_labelled(source, self.roles, "skip")

    def answers(self, rows: list[Labelled]) -> list[dict[str, Any]]:
        """The head's answer to each row, in the form of `answer_document`."""
        inputs = [[row.fields[role] for role in self.roles] for row in rows]
        outputs = self.head.outputs([self.head.encoder.sequences(texts) for texts in inputs])
        choices = (row.fields.get("choices", []) for row in rows)
        return [
            answer_document(self.head.spec, output, named if isinstance(named, list) else [])
            for output, named in zip(outputs, choices, strict=True)
        ]


def open_predictor(run: str, device: str = "auto") -> Predictor:
    """A finished run with a head, or a model merged from one. device: as in `load_model`.

    Raises ConfigError and ModelError.
    """
    files = find_model(run)
    if not (files.path / HEAD_FILE).is_file():
        raise ConfigError(
            f"{run}: expected a run with a head; this model replies: chatapp ask --model {run}"
        )
    named: dict[str, str] = {}
    if (files.path / RUN_RECORD).is_file():  # a merged model has none
        named = configuration_of(files.path, read_record(files.path)).data.train[0].columns
    head = HeadModel.load(run, files, device)
    roles = ROLES[head.spec.task][:-1]
    columns = {role: column for role, column in named.items() if role in roles}
    described = hashlib.sha256(read_regular(files.path / HEAD_FILE)).hexdigest()[:12]
    return Predictor(head, columns, f"{files.digest()}-{described}")


def answer_file(
    predictor: Predictor,
    inputs: Path,
    output: Path | None,
    console: Console,
    write: Callable[[str], None],
) -> int:
    """Answer a file of inputs; return the number of bad ones, which are reported on the console.

    output: a journal for the rows; None calls `write` with each as a JSON line. Raises as
    `predict_all` does, and UserError.
    """
    bad = 0

    def report(sentence: str) -> None:
        nonlocal bad
        bad += 1
        console.print(printable(sentence), markup=False, soft_wrap=True)

    with ExitStack() as stack:
        journal = stack.enter_context(Journal(output)) if output else None
        status = stack.enter_context(console.status("reading"))
        for rows in predict_all(predictor, predictor.read(inputs), journal, report):
            status.update(f"answered {rows[-1]['row']:,}")
            if journal is None:
                write("\n".join(map(json.dumps, rows)))
    return bad


def predict_all(
    predictor: Predictor,
    inputs: Iterable[Input],
    journal: Journal | None,
    report: Callable[[str], None],
) -> Iterator[list[JournalRow]]:
    """Answer every input; yield the new rows some at a time, after they are written.

    A row has the number of its input from 1 as `row`, the `input`, the result of
    `Predictor.answers` or an `error`, and its `run`. report: called with the error of a bad row,
    also of those from an earlier start. Raises PromptError when the journal is of another run or of
    other inputs, and NotWritten.
    """
    numbered = (
        ({"row": number, "input": _shown(entry)}, entry) for number, entry in enumerate(inputs, 1)
    )
    waiting = unanswered(numbered, journal, predictor.identity, report)
    while batch := list(islice(waiting, STRETCH)):
        good = [(row, entry) for row, entry in batch if not isinstance(entry, UserError)]
        answers = predictor.answers([entry for _, entry in good])
        for (row, _), answer in zip(good, answers, strict=True):
            row |= answer
        for row, entry in batch:
            if isinstance(entry, UserError):
                row["error"] = str(entry)
                report(str(entry))
            row["run"] = predictor.identity
        rows = [row for row, _ in batch]
        if journal:
            journal.append(rows)
        yield rows


def _shown(entry: Input) -> str | dict[str, Any] | None:
    """An input in the output: its text, or its fields if it has several."""
    if isinstance(entry, UserError):
        return None
    return entry.fields if len(entry.fields) > 1 else str(next(iter(entry.fields.values())))


def parsed(text: str, roles: tuple[str, ...]) -> str | dict[str, Any]:
    """The value of `--input`, for `Predictor.row`: a text; if a row has several fields a JSON
    object of them, where it is one.
    """
    if len(roles) == 1:
        return text
    try:
        fields = parse_json(text)
    except ValueError:
        fields = None
    return fields if isinstance(fields, dict) else text
