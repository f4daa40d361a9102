"""`finetune trace`: which spans of a text occur word for word in the training files of a run, how
often and where.

The folder `verbatim` of a run holds the index: in parts of about a million words, the words of the
files as numbers and a suffix array, the places of the words sorted by what follows them (Manber and
Myers 1993). words.json lists the words, rows.jsonl where each row is, index.json the files.
"""

import json
import math
import re
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from chatapp.common.foreign import parse_json, printable
from chatapp.common.userfiles import read_json_object, read_regular
from chatapp.engine.models.loading import load_model
from chatapp.rows.reading import BadRow, renamed, tables
from chatapp.tasks.evaluation.language_modelling import perplexity
from finetune.config.sections import BadRows, ConfigError, TrainSource
from finetune.data.formats import TrainingExample, detect
from finetune.data.phrasings import load_phrasings
from finetune.training.record import PRETRAIN_RECORD, configuration_of, read_record, write_json

INDEX_FOLDER = "verbatim"
SHORTEST = 4
"""Words of a span that is worth showing."""

ORDER = 5
"""The order of the n-gram baseline."""

_PART = 2**20  # words
_WORD = re.compile(r"\w+|[^\w\s]")
_PRIOR = 1.0  # observations that a distribution of shorter contexts counts for

Numbers = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Copy:
    """A span of a text that occurs in the training files.

    start, end: its characters. words: how many. count: how often it occurs. row: where first.
    """

    start: int
    end: int
    words: int
    count: int
    row: str


@dataclass(frozen=True, slots=True)
class Recall:
    """copies: the longest spans of a text, none within another, in their order. words: of the text.
    ngram_nats: nats of it under the n-gram baseline, see `_ngram_nats`.
    """

    copies: list[Copy]
    words: int
    ngram_nats: float


def find_copies(run: Path, text: str, shortest: int = SHORTEST) -> Recall:
    """The copies in a text of what a run was trained on. Builds the index the first time.

    Raises ConfigError.
    """
    spans = [match.span() for match in _WORD.finditer(text)]
    if not spans:
        raise ConfigError("there are no words in the reply")
    folder = _index(run)
    listed: list[str] = parse_json(read_regular(folder / "words.json"))
    known = {word: number for number, word in enumerate(listed)}
    query = [known.get(text[start:end], -1) for start, end in spans]
    counts: list[list[int]] = [[] for _ in query]  # of each word and length
    first: list[dict[int, int]] = [{} for _ in query]  # length -> row
    total = 0
    for part in sorted(folder.glob("part-*.npz"), key=lambda path: int(path.stem[5:])):
        with np.load(part) as arrays:
            words, order, starts = (arrays[name] for name in ("words", "order", "starts"))
            total += len(words) - len(starts)
            for at in range(len(query)):
                _count(query[at:], words, order, starts, int(arrays["row"]), counts[at], first[at])
    copies = []
    reached = 0
    for at, by_length in enumerate(counts):
        end = at + len(by_length)
        if len(by_length) >= min(shortest, len(query)) and end > reached:
            row = _location(folder, first[at][len(by_length)])
            copies.append(Copy(spans[at][0], spans[end - 1][1], len(by_length), by_length[-1], row))
        reached = max(reached, end)
    return Recall(copies, len(query), _ngram_nats(counts, total, len(known)))


def _count(
    query: Sequence[int],
    words: Numbers,
    order: Numbers,
    starts: Numbers,
    row: int,
    counts: list[int],
    first: dict[int, int],
) -> None:
    """Add how often each beginning of the query occurs in a part, and the first row of each."""
    low, high = 0, len(order)
    for length, word in enumerate(query, 1):

        def following(place: int, after: int = length - 1) -> int:
            return int(words[place + after])

        low = bisect_left(order, word, low, high, key=following)
        high = bisect_right(order, word, low, high, key=following)
        if low == high or word < 0:
            return
        if len(counts) < length:
            counts.append(0)
        counts[length - 1] += high - low
        if length not in first:
            place = int(order[low:high].min())
            first[length] = row + int(np.searchsorted(starts, place, "right")) - 1


def _ngram_nats(counts: Sequence[Sequence[int]], total: int, vocabulary: int) -> float:
    """Nats of a text under the `ORDER`-gram of the training text: of each context the counts, with
    the distribution of the next shorter context as a prior of `_PRIOR` observations (MacKay and
    Peto 1995), and below all of them equal chances for each word and one unknown.

    counts: of the words from each place on, by length, as far as they occur.
    """

    def count(start: int, end: int) -> int:
        by_length = counts[start]
        return by_length[end - start - 1] if 0 < end - start <= len(by_length) else 0

    nats = 0.0
    for at in range(len(counts)):
        chance = 1 / (vocabulary + 1)
        for length in range(min(ORDER, at + 1)):
            seen = count(at - length, at) if length else total
            chance = (count(at - length, at + 1) + _PRIOR * chance) / (seen + _PRIOR)
        nats -= math.log(chance)
    return nats


def _index(run: Path) -> Path:
    """The folder of the index of a run, which is built where it is missing or of other files."""
    sources, wanted = _sources(run)
    folder = run / INDEX_FOLDER
    try:
        built = read_json_object(folder / "index.json", ConfigError)
    except FileNotFoundError:
        built = {}
    if built != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        _build(folder, sources)
        write_json(folder / "index.json", wanted)
    return folder


def _sources(run: Path) -> tuple[Iterator[TrainingExample], dict[str, Any]]:
    """The rows of a run's training files, and what identifies them. Raises ConfigError."""
    bad_rows: BadRows = "raise"
    if (run / PRETRAIN_RECORD).exists():
        record = read_record(run, PRETRAIN_RECORD)
        rows = record["config"]["data"]["train"]
        files = [TrainSource.model_validate({"path": row["path"]}) for row in rows]
    else:
        record = read_record(run)
        data = configuration_of(run, record).data
        files, bad_rows = data.train, data.bad_rows
    identity = {"files": [file.path for file in files], "data": record["data"]}
    return _examples(files, bad_rows), identity


def _examples(files: Iterable[TrainSource], bad_rows: BadRows) -> Iterator[TrainingExample]:
    for source in files:
        phrasings = load_phrasings(Path(source.template)) if source.template else None
        for table in tables(source):
            for row in renamed(table, source.columns):
                try:
                    if isinstance(row, BadRow):
                        raise row
                    yield phrasings.phrase(row, 0, 0) if phrasings else detect(row).read(row)
                except BadRow:
                    if bad_rows == "raise":
                        raise


def _build(folder: Path, examples: Iterable[TrainingExample]) -> None:
    known: dict[str, int] = {}
    numbers: list[int] = []
    starts: list[int] = []
    row, parts = 0, 0

    def write() -> None:
        nonlocal parts
        words = np.array(numbers, np.int32)
        first = np.array(starts, np.int32)
        part = folder / f"part-{parts}.npz"
        np.savez(part, words=words, order=_suffix_array(words), starts=first, row=row - len(starts))
        numbers.clear()
        starts.clear()
        parts += 1

    with (folder / "rows.jsonl").open("w", encoding="utf-8") as locations:
        for example in examples:
            texts = [message.text for message in example.messages] or example.parts
            words = (w for text in texts or [example.text] for w in _WORD.findall(text))
            while piece := list(islice(words, _PART)):
                locations.write(json.dumps(example.location) + "\n")
                starts.append(len(numbers))
                row += 1
                numbers += [known.setdefault(word, len(known)) for word in piece]
                numbers.append(-1 - len(starts))  # an end that nothing continues
                if len(numbers) >= _PART:
                    write()
        if numbers:
            write()
    (folder / "words.json").write_text(json.dumps(list(known)), encoding="utf-8")


def _suffix_array(words: Numbers) -> Numbers:
    """The places in order of what follows them, by doubling the compared length."""
    _, ranks = np.unique(words, return_inverse=True)
    ranks = ranks.astype(np.int64)
    length = 1
    while True:
        later = np.zeros(len(words), np.int64)
        later[:-length] = ranks[length:] + 1
        keys = ranks * (len(words) + 1) + later
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        ranks[order] = np.concatenate([[0], np.cumsum(ordered[1:] != ordered[:-1])])
        if ranks[order[-1]] == len(words) - 1:
            return order.astype(np.int32)
        length *= 2


def _location(folder: Path, row: int) -> str:
    with (folder / "rows.jsonl").open(encoding="utf-8") as file:
        return str(parse_json(next(islice(file, row, None))))


@dataclass(frozen=True, slots=True)
class Copies:
    """A reply with its copies. model_nats: of the whole reply under the run's model."""

    reply: str
    recall: Recall
    model_nats: float

    def document(self) -> dict[str, Any]:
        """Plain data for --json."""
        return {
            "reply": self.reply,
            "copies": [
                {"text": self.reply[copy.start : copy.end], **asdict(copy)}
                for copy in self.recall.copies
            ],
            "words": self.recall.words,
            "nats_per_word": {
                "model": self.model_nats / self.recall.words,
                "ngram": self.recall.ngram_nats / self.recall.words,
            },
        }

    def __rich__(self) -> RenderableType:
        """The reply with its copies underlined, and where they are from."""
        text = Text(printable(self.reply))
        table = Table("copy", "words", "times", "first in row")
        for copy in self.recall.copies:
            text.stylize("underline", copy.start, copy.end)
            span = Text(printable(self.reply[copy.start : copy.end]))
            place = Text(printable(copy.row))
            table.add_row(span, f"{copy.words:,}", f"{copy.count:,}", place)
        words = self.recall.words
        nats = (
            f"{self.model_nats / words:.2f} nats a word by the model, "
            f"{self.recall.ngram_nats / words:.2f} by the {ORDER}-gram of its training files"
        )
        none = Text("No longer span of it stands in the training files.")
        return Group(text, table if self.recall.copies else none, Text(nats))


def trace_copies(run: Path, reply: str, device: str) -> Copies:
    """Find what of a reply stands in the training files. Raises ConfigError and ModelError."""
    recall = find_copies(run, reply)
    model = load_model(str(run), device=device)
    return Copies(reply, recall, perplexity(model, reply).negative_log_likelihood)
