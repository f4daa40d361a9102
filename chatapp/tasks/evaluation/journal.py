"""JSON Lines files that a later start continues, and the identities of their inputs.

The format: ASCII with escapes, one JSON object per line, each line ended by a line feed, rows in
the order of their creation. The writer defines the content of a row: `batch` that of `run
--output`, the last paragraphs here that of `eval --report`, whose first row is a head. While a
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
    log_likelihoods by label, in nats: see `scoring.Likelihoods`; null for text and vote
    output          the text generated or voted for; null where labels were scored
    tokens, seconds the prompt's length, and the time the answer took
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from filelock import FileLock, Timeout

from chatapp.common.userfiles import open_named, reason
from chatapp.prompting.examples import PromptError
from chatapp.tasks.files.promptfile import PromptFile
from chatapp.tasks.label_scores import Likelihoods, best, probabilities
from chatapp.tasks.settings import Scoring

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
                with suppress(ValueError, RecursionError):
                    row = {} if is_half and line.startswith(b"{") else json.loads(line)
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
            self._lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=0)
            self._lock.acquire()
        except Timeout:
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # rows that `append` could not write are tried once more here
            self._file.close()
        # While it is still held: a moment later it may be the lock of another process.
        with suppress(OSError):
            os.unlink(self._lock.lock_file)
        self._lock.release()

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

Setting = tuple[str, int, str, str, str, str, str]
"""Task, shots, selection, order, layout, style and instruction."""


def setting_of(row: JournalRow) -> Setting:
    setting = row["task"], row["shots"], row["selection"], row["order"], row["layout"]
    return *setting, style_of(row), instruction_of(row)


def style_of(row: JournalRow) -> str:
    """The style of a row; older rows have none."""
    return str(row.get("style", NONE if row["layout"] == "vote" else "text"))


def instruction_of(row: JournalRow) -> Any:
    """Whether the prompt had its instruction; older rows had it."""
    return row.get("instruction", "on")


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
