"""JSON Lines files that a later start continues, and the identities of their inputs.

The format: ASCII with escapes, one JSON object per line, each line ended by a line feed, rows in
the order of their creation. The content of a row is `document` for `run --output`, and
the last paragraphs here for `eval --report`, whose first row is a head. While a
process writes NAME, it holds a lock on the empty file .NAME.lock next to it, which is deleted when
the process ends.

Invariants: whatever kills the program, the file consists of whole lines and at most one half line
at its end; that one is cut off when the file is opened again, and its row is repeated. Everything
that changes an answer changes the digest of its prompt or model, so a run is never continued with
other ones; names and places do not. Every figure of a report is arithmetic on the raw answers, so
accuracy under another decision rule needs no model.

The raw answers of an evaluation: what `eval --report DIR` keeps in DIR/answers.jsonl.

The first line is the head: {"format": 1, "model": identity, "tasks": {name: {"prompt":
identity, "items": identity, "label_tokens": {label: number of tokens}}}}. Every other line is
the answer to one item in one setting:

    task, shots, selection, order, seed     the setting
    layout          of the request: direct, calibrated (direct with content-free inputs),
                    channel, choices (of the item), text (generated) or vote (no model)
    style           text, turns (of a chat), or none for a vote; text if missing
    instruction     on or off; on if missing
    label_tokens    number of tokens by label, if turns differ from the head
    item            the number of the item among the evaluated ones; line: in its file
    input, gold     the item
    examples        the demonstrations as indices into the pool, nearest first
    dropped         the number that did not fit the window
    log_likelihoods by label, in nats: see `answering.Likelihoods`; null for text and vote
    output          the text generated or voted for; null where labels were scored
    tokens, seconds the prompt's length, and the time the answer took
"""

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, cast

from chatapp.common.foreign import parse_json
from chatapp.common.userfiles import lock_of, locked, open_named, reason
from chatapp.prompting.messages import text_of
from chatapp.rows.examples import PromptError, Query, item_of
from chatapp.rows.reading import RowsError
from chatapp.tasks.answering import Answer, Answering, Likelihoods, Question, best, probabilities
from chatapp.tasks.evaluation.inputs import Inputs
from chatapp.tasks.files.layout import Demonstration
from chatapp.tasks.files.promptfile import PromptFile
from chatapp.tasks.settings import Scoring, Switch

JournalRow = dict[str, Any]


class NotWritten(Exception):
    """Rows that could not be written, in one sentence; those before them are on the disk."""


def read_rows(path: Path) -> Iterator[JournalRow]:
    """The whole rows of a file, one at a time; half a row at its end is skipped.

    Raises PromptError at an invalid line, and when the file cannot be read.
    """
    try:
        with open_named(path) as file:
            for number, line in enumerate(file, 1):
                is_half = not line.endswith(b"\n")
                row = None
                with suppress(ValueError):
                    row = {} if is_half and line.startswith(b"{") else parse_json(line)
                if not isinstance(row, dict):
                    raise PromptError(
                        f"{path}, line {number}: is not a row that can be continued; choose "
                        "another file or delete this one"
                    )
                if not is_half:
                    yield row
    except OSError as error:
        raise PromptError(f"{path}: cannot be read: {reason(error)}") from None


class Journal:
    """The file, open for appending and locked against a second process.

    Nothing changes before the first `append`, so a wrong file stays unchanged. Raises PromptError
    when it cannot be opened, or is in use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_file():  # a device would be read without end
            raise PromptError(f"{path}: cannot be written: is not a regular file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
            self._lock = locked(lock_of(path), 0.0)
            self._lock.__enter__()
        except TimeoutError:
            self._file.close()
            raise PromptError(f"{path}: another process is writing this file") from None
        except OSError as error:
            raise PromptError(f"{path}: cannot be written: {reason(error)}") from None
        self._is_whole = False

    def rows(self) -> Iterator[JournalRow]:
        """The existing rows (see `read_rows`)."""
        return read_rows(self.path)

    def append(self, rows: Iterable[JournalRow]) -> None:
        """Write rows, and flush them to the disk. Raises NotWritten."""
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

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # rows that `append` could not write are tried once more here
            self._file.close()
        self._lock.__exit__(None, None, None)

    def _cut(self) -> None:
        """Drop the text after the last line break."""
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


def prompt_identity(prompt: PromptFile) -> str:
    """Twelve hex digits over everything in a prompt file that affects the rendering of an input."""
    keys: dict[str, object] = {
        "text": prompt.text,
        "layout": [
            prompt.instruction,
            *(
                [prompt.example, prompt.query]
                if prompt.example or prompt.query
                else [prompt.input_prefix, prompt.output_prefix]
            ),
            prompt.separator,
        ],
        "stop": prompt.stop,
        "labels": prompt.labels,
        "select": prompt.select.model_dump(),
        "scoring": prompt.scoring,
        "generate": dict(prompt.generate),
    }
    if prompt.style != "text":  # unchanged for files from before there was a choice
        keys["style"] = prompt.style
    if prompt.choices:
        keys["choices"] = prompt.choices
    if prompt.documents is not None:
        keys["documents"] = prompt.documents.to_dict()
    digest = hashlib.sha256(json.dumps(keys, sort_keys=True).encode())
    columns = prompt.pool.columns.values()
    for text in (*prompt.pool.inputs, *prompt.pool.outputs, *chain.from_iterable(columns)):
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()[:12]


FORMAT = 1

NONE = "none"
"""The selection and the order of a prompt without demonstrations, and the style of a vote."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run over the items of a task, as the fields of its rows: see the module."""

    task: str
    shots: int
    selection: str
    order: str
    layout: str
    seed: int
    style: str = "text"
    instruction: Switch = "on"


def cell_of(row: JournalRow) -> Cell:
    """The run that a row is of; older rows have neither style nor instruction, which was there."""
    usual: JournalRow = {
        "style": NONE if row["layout"] == "vote" else "text",
        "instruction": "on",
    } | row
    return Cell(**{field.name: usual[field.name] for field in fields(Cell)})


def likelihoods_of(row: JournalRow) -> Likelihoods:
    """The likelihoods of a row of labels."""
    by_kind = row["log_likelihoods"]
    return Likelihoods(
        by_kind["direct"],
        tuple(by_kind["content_free"]),
        by_kind["channel"],
        by_kind.get("tokens", {}),
        by_kind.get("unconditional", {}),
    )


def decided(row: JournalRow, scoring: str) -> str:
    """The answer of a row; `scoring` decides between labels if there are any."""
    if row["log_likelihoods"] is None:
        return str(row["output"])
    return best(probabilities(likelihoods_of(row), cast(Scoring, scoring)))


def read_answers(path: Path) -> tuple[dict[str, Any], Iterator[JournalRow]]:
    """The head and the answers in a file. Raises PromptError."""
    rows = read_rows(path)
    head = next(rows, {})
    if head.get("format") != FORMAT:
        raise PromptError(f"{path}: does not hold the answers of an evaluation")
    return head, rows


Item = TypeVar("Item")


def document(answer: Answer) -> dict[str, Any]:
    """An answer as plain data. Times are in seconds, likelihoods in nats."""
    finished = answer.finished
    return {
        "input": answer.question.input,
        "output": answer.output,
        "label_probabilities": answer.probabilities,
        "log_likelihoods": log_likelihoods(answer),
        "examples": [_demonstration(example) for example in answer.question.examples],
        "dropped": [_demonstration(example) for example in answer.question.dropped],
        "prompt": text_of(answer.question.segments),
        "finish_reason": finished.reason if finished else None,
        "prompt_tokens": answer.prompt_tokens,
        "reply_tokens": finished.reply_tokens if finished else 0,
        "time_to_first_token": finished.time_to_first_token if finished else None,
        "tokens_per_second": finished.tokens_per_second if finished else None,
        "seconds": answer.seconds,
    } | (finished.fit if finished else {})


def log_likelihoods(answer: Answer) -> dict[str, Any] | None:
    """The raw numbers behind an answer; None if it is not a scored label."""
    likelihoods = answer.likelihoods
    if likelihoods is None:
        return None
    of_choices = {
        "tokens": dict(likelihoods.tokens),
        "unconditional": dict(likelihoods.unconditional),
    }
    return {
        "direct": dict(likelihoods.direct),
        "content_free": [dict(sums) for sums in likelihoods.content_free],
        "channel": dict(likelihoods.channel),
        **(of_choices if likelihoods.tokens else {}),
    }


def _demonstration(example: Demonstration) -> dict[str, Any]:
    return {"index": example.index, "similarity": example.similarity}


def answer_all(
    answerer: Answering,
    inputs: Inputs,
    *,
    source: str,
    identity: str,
    journal: Journal | None,
    report: Callable[[str], None],
) -> Iterator[list[JournalRow]]:
    """Answer every input; yield the new rows a few at a time, after they are written.

    A row is the `document` of an answer, with the `line` of its input and its `run`; a bad input
    has an `error` instead of an answer. source: of the inputs, for errors. identity: of prompt,
    model and options. report: called with the error of each bad row, also of those from an earlier
    start. Raises PromptError when the journal is of another run or of other inputs.
    """
    numbered = (({"line": line, "input": _text_of(query)}, query) for line, query in inputs)
    waiting = unanswered(numbered, journal, identity, report)
    for rows in _answered(answerer, waiting, source):
        for row in rows:
            row["run"] = identity
            if "error" in row:
                report(row["error"])
        if journal:
            journal.append(rows)
        yield rows


def unanswered(
    inputs: Iterable[tuple[JournalRow, Item]],
    journal: Journal | None,
    identity: str,
    report: Callable[[str], None],
) -> Iterator[tuple[JournalRow, Item]]:
    """The inputs without a row, each with the beginning of its row.

    inputs: each with the beginning of its row, its place and its text; existing rows must begin in
    the same way. identity, report: see `answer_all`. Raises PromptError.
    """
    if journal is None:
        yield from inputs
        return
    done = journal.rows()
    for beginning, item in inputs:
        row = next(done, None)
        if row is None:
            yield beginning, item
            continue
        if row.get("run") != identity:
            raise PromptError(
                f"{journal.path}: was written with another prompt, model or option; "
                "choose another file to keep it"
            )
        if any(row.get(key) != value for key, value in beginning.items()):
            place = next(iter(beginning))
            raise PromptError(
                f"{journal.path}: its row for {place} {row.get(place)} does not match "
                "these inputs; choose another file to keep it"
            )
        if "error" in row:
            report(str(row["error"]))
    if next(done, None) is not None:
        raise PromptError(f"{journal.path}: has more rows than there are inputs")


def _text_of(query: Query | RowsError) -> str | None:
    return None if isinstance(query, RowsError) else item_of(query).input


def _answered(
    answerer: Answering, inputs: Iterable[tuple[JournalRow, Query | RowsError]], source: str
) -> Iterator[list[JournalRow]]:
    """The row of each input, in order, after its beginning."""
    taken: deque[JournalRow] = deque()

    def questions() -> Iterator[Question]:
        for row, query in inputs:
            taken.append(row)
            if isinstance(query, RowsError):
                row["error"] = str(query)
                continue
            try:
                yield answerer.prepare(query)
            except RowsError as error:
                row["error"] = f"{source}, line {row['line']}: {error}"

    for answers in answerer.answers(questions()):
        rows = []
        for answer in answers:
            while "error" in taken[0]:
                rows.append(taken.popleft())
            rows.append(taken.popleft())
            if answer.finished and answer.finished.reason == "error":
                rows[-1]["error"] = f"{source}, line {rows[-1]['line']}: {answer.finished.message}"
            else:
                rows[-1].update(document(answer))
        yield rows
    if taken:  # the last inputs were bad
        yield list(taken)
