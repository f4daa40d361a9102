"""The [data] section to encoded examples: read, phrase, split, encode, mix, and count."""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from chatapp.common.userfiles import did_you_mean, quoted
from chatapp.dialogue.writers.choosing import own_template
from chatapp.engine.files.model_files import ModelFiles
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.messages import OWN
from chatapp.prompting.template import PLAIN, TEMPLATES
from chatapp.rows.reading import BadRow, Row, RowTable, renamed, tables
from finetune.config.sections import BadRows, ConfigError, Data, TrainSource
from finetune.data.encoding import ExampleEncoder, ExampleTooLong
from finetune.data.formats import FIELDS, Layout, detect, text_field
from finetune.data.phrasings import Phrasings, load_phrasings
from finetune.data.split import draw, is_held_out

HELD_OUT = "held_out"
CLUSTER = "cluster"
_MOST_MODELS = 8
_MOST_FAULTS = 3
LONGEST = 1024
"""Tokens of a row unless the configuration says otherwise: GPT-2's window."""


@dataclass(slots=True)
class TableReport:
    """The statistics of one file. digest: over the tokens and spans of its rows."""

    name: str
    layout: str = "no usable row"
    fields: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    rows: int = 0
    kept: int = 0
    digest: str = ""


@dataclass(slots=True)
class Report:
    """Statistics of the rows.

    tables: the files in their order, including those for evaluation. dropped: rows by reason.
    faults: of each reason, the sentences on its first three rows. truncated: examples by how they
    were shortened. turns_left_out: messages lost by that. clusters: rows of each named cluster of
    tasks. models: rows by the model that they name, as feedback on replies does. repeated: training
    rows that occurred before.
    """

    tables: list[TableReport] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[str]] = field(default_factory=dict)
    truncated: Counter[str] = field(default_factory=Counter)
    turns_left_out: int = 0
    clusters: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    repeated: int = 0

    def drop(self, reason: str, fault: Exception) -> None:
        """Count a row that is left out. fault: its message names the row."""
        self.dropped[reason] += 1
        if self.dropped[reason] <= _MOST_FAULTS:
            self.faults.setdefault(reason, []).append(str(fault))

    @property
    def kept(self) -> int:
        """Rows for training or evaluation."""
        return sum(table.kept for table in self.tables)

    @property
    def hashes(self) -> dict[str, str]:
        """The digest of each file's tokens: a resumed run must find the same."""
        digests: dict[str, str] = {}
        for table in self.tables:  # a file can be read twice, in other phrasings
            digests[table.name] = digests.get(table.name, "") + table.digest
        return digests

    def lines(self) -> list[str]:
        """The report in words: layouts, dropped and shortened rows. Contains foreign text."""
        lines = []
        for table in self.tables:
            if not table.rows:
                lines.append(f"{table.name}: is empty; nothing is learnt from it")
                continue
            fields = [", ".join(table.fields)]
            if table.ignored:
                fields.append(f"not used: {', '.join(table.ignored)}")
            lines.append(
                f"{table.name}: {table.layout} ({'; '.join(fields)}), "
                f"rows: {table.rows:,}, kept: {table.kept:,}"
            )
        for reason, count in self.dropped.items():
            lines.append(f"rows dropped, {reason}: {count:,}")
            lines += [f"  {fault}" for fault in self.faults.get(reason, ())]
        lines += [f"{_TRUNCATED[how]}: {count:,}" for how, count in self.truncated.items()]
        if self.turns_left_out:
            lines.append(f"turns left out with them: {self.turns_left_out:,}")
        if self.repeated:
            lines.append(f"training rows that occurred before: {self.repeated:,}")
        lines += [f"rows of the cluster {name}: {count:,}" for name, count in self.clusters.items()]
        most = self.models.most_common(_MOST_MODELS)
        lines += [f"rows on replies of the model {name}: {count:,}" for name, count in most]
        return lines


_TRUNCATED = {
    "prompt": "rows cut in their prompts",
    "history": "rows cut by their oldest turns",
    "windows": "plain texts split into windows",
    "last turn": "rows without their last turn, which nobody answers",
    "joined": "rows whose questions in a row were joined, and replies to nothing left out",
    "in their order": "rows whose roles do not alternate, learnt as the template allows",
}


class EncodedExample(Protocol):
    """A row as tokens.

    key: distinguishes it from other rows. split_key: decides between training and evaluation.
    content: its trained content, for a digest.
    """

    @property
    def key(self) -> str: ...
    @property
    def split_key(self) -> str: ...
    @property
    def content(self) -> bytes: ...


Encodes = TypeVar("Encodes", bound=EncodedExample)


@dataclass(frozen=True, slots=True)
class RowKind(Generic[Encodes]):
    """The kind of rows and the conversion to examples.

    fields: those of all layouts. detect: the layout of a row. encode: makes examples of what the
    layout reads, by the encoder; raises ExampleTooLong and BadRow. phrased: whether instruction
    templates can produce such a row.
    """

    fields: tuple[str, ...]
    detect: Callable[[Row], Layout[Any]]
    encode: Callable[[ExampleEncoder, Any], list[Encodes]]
    phrased: bool = False


CHATS = RowKind(FIELDS, detect, ExampleEncoder.encode, phrased=True)
"""Chats, plain texts and few-shot prompts."""


@dataclass(frozen=True, slots=True)
class ExampleSets(Generic[Encodes]):
    """Examples ready for collation.

    train: one pass, repeated according to the weights; not shuffled. held_out: "held_out", if there
    is any, and each held-out cluster by its name.
    """

    train: list[Encodes]
    held_out: dict[str, list[Encodes]]
    report: Report


def choose_template(data: Data, files: ModelFiles, special: Collection[str]) -> ChatTemplate:
    """The template of a run: the named one, else the model's own.

    files: of the model; for a masked one the plain template is the default. special: the names of
    its tokenizer's special tokens. Raises ConfigError
    for an unknown name, or when none is named and the model has none.
    """
    if data.template in TEMPLATES:
        return TEMPLATES[data.template]
    known = ", ".join(TEMPLATES)
    if data.template not in ("", OWN):
        raise ConfigError(
            f"data.template is {data.template!r}; there are {known}"
            f"{did_you_mean(data.template, TEMPLATES)}"
        )
    try:
        own = own_template(files, special)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if own is None and files.is_masked:
        return PLAIN
    if own is None:
        raise ConfigError(
            f"{files.path}: this model has no dialogue template; set data.template to one of "
            f"{known}"
        )
    return own


def length_of(data: Data, window: int) -> int:
    """Most tokens of an example. Raises ConfigError for more than the model's window."""
    length = min(window, LONGEST) if data.max_length is None else data.max_length
    if length > window:
        raise ConfigError(
            f"data.max_length is {length:,}; the model's window has {window:,} tokens"
        )
    return length


def encode_rows(
    data: Data, kind: RowKind[Encodes], encoder: ExampleEncoder, seed: int
) -> ExampleSets[Encodes]:
    """Read and encode everything in `data`.

    seed: for phrasings and for fractions of weights. Raises ConfigError, at the first bad row
    unless they are skipped.
    """
    report = Report()
    reader = _Reader(kind, encoder, report, data.bad_rows, seed)
    files, share = ([], data.held_out) if isinstance(data.held_out, float) else (data.held_out, 0.0)
    held_out = {
        HELD_OUT: [example for file in files for row in reader.read(file) for example in row.first]
    }
    sources = [(source, list(reader.read(source))) for source in data.train]
    report.truncated, report.turns_left_out = encoder.truncated, encoder.turns_left_out
    for name in _checked_clusters(data, report):
        members = (row for _, rows in sources for row in rows if row.cluster == name)
        held_out[name] = [example for row in members for example in row.first]
    held_out_keys = {example.split_key for examples in held_out.values() for example in examples}

    train: list[Encodes] = []
    seen: set[str] = set()
    for source, rows in sources:
        passes: list[list[Encodes]] = [[] for _ in range(ceil(source.weight))]
        for row in rows:
            if row.cluster in data.held_out_clusters:
                continue
            if row.first[0].split_key in held_out_keys:
                report.dropped["also held out"] += 1
                row.table.kept -= 1
                continue
            report.repeated += row.key in seen
            seen.add(row.key)
            held_out[HELD_OUT] += (e for e in row.first if is_held_out(e.split_key, share))
            for turn, examples in enumerate(passes):
                phrased = row.phrased[turn % len(row.phrased)]
                examples += (e for e in phrased if not is_held_out(e.split_key, share))
        for turn, examples in enumerate(passes):
            train += draw(examples, min(1.0, source.weight - turn), seed)
    if not train:
        raise ConfigError(f"data.train: no row is left to train on{_why(report)}")
    return ExampleSets(train, {name: rows for name, rows in held_out.items() if rows}, report)


def _checked_clusters(data: Data, report: Report) -> list[str]:
    for name in data.held_out_clusters:
        if name not in report.clusters or name == HELD_OUT:
            known = ", ".join(map(quoted, report.clusters)) or "none"
            raise ConfigError(
                f"data.held_out_clusters: no row belongs to a cluster {quoted(name)}"
                f"{did_you_mean(name, report.clusters)}; there are {known}"
            )
    return data.held_out_clusters


def _why(report: Report) -> str:
    whys = [f"{report.kept:,} held out"]
    whys += [f"{count:,} dropped for {reason!r}" for reason, count in report.dropped.items()]
    whys += [f"{table.name} holds no row" for table in report.tables if not table.rows]
    return ": " + ", ".join(whys)


@dataclass(frozen=True, slots=True)
class _EncodedRow(Generic[Encodes]):
    """A row in each phrasing that its passes need; a plain text may be several windows."""

    table: TableReport
    cluster: str
    phrased: list[list[Encodes]]

    @property
    def first(self) -> list[Encodes]:
        return self.phrased[0]

    @property
    def key(self) -> str:
        return self.first[0].key


@dataclass(frozen=True, slots=True)
class _Reader(Generic[Encodes]):
    """Reads sources into the report, row by row; bad rows are raised or counted."""

    kind: RowKind[Encodes]
    encoder: ExampleEncoder
    report: Report
    bad_rows: BadRows
    seed: int

    def read(self, source: TrainSource) -> Iterator[_EncodedRow[Encodes]]:
        if source.template and not self.kind.phrased:
            raise ConfigError(
                f"{source.path}: instruction templates make chats of rows, and the objective "
                "learns from feedback; leave `template` out"
            )
        phrasings = load_phrasings(Path(source.template)) if source.template else None
        if phrasings is None:
            _check_columns(source, self.kind.fields)
        for table in tables(source):
            yield from self._read_table(table, source, phrasings)

    def _read_table(
        self, table: RowTable, source: TrainSource, phrasings: Phrasings | None
    ) -> Iterator[_EncodedRow[Encodes]]:
        report = TableReport(table.name)
        self.report.tables.append(report)
        digest = hashlib.sha256()
        layout: Layout[Any] | None = None
        for row in renamed(table, source.columns):
            report.rows += 1
            try:
                if isinstance(row, BadRow):
                    raise row
                if phrasings:
                    turns = range(ceil(source.weight))
                    examples: list[Any] = [phrasings.phrase(row, self.seed, t) for t in turns]
                else:
                    layout = layout or self.kind.detect(row)
                    examples = [layout.read(row)]
                cluster = _cluster(row, source, phrasings)
                phrased = [self.kind.encode(self.encoder, example) for example in examples]
            except ExampleTooLong as error:
                if self.encoder.too_long == "raise":
                    raise ConfigError(
                        f"{error}; data.too_long can drop, truncate-prompt or truncate-history"
                    ) from None
                self.report.drop("too long", error)
                continue
            except BadRow as error:
                if self.bad_rows == "raise":
                    raise BadRow(
                        error.reason, f'{error}; data.bad_rows = "drop" leaves such rows out'
                    ) from None
                self.report.drop(error.reason, error)
                continue
            if not report.kept:
                _describe(report, row, layout, phrasings)
            report.kept += 1
            if model := row.fields.get("model"):
                self.report.models[str(model)] += 1
            if cluster:
                self.report.clusters[cluster] += 1
            for example in chain.from_iterable(phrased):
                digest.update(example.content)
            report.digest = digest.hexdigest()
            yield _EncodedRow(report, cluster, phrased)


def _check_columns(source: TrainSource, fields: Sequence[str]) -> None:
    for name in source.columns:
        if name not in (*fields, CLUSTER):
            raise ConfigError(
                f"{source.path}: columns names {quoted(name)}, which no layout has"
                f"{did_you_mean(name, fields)}; there are {', '.join(fields)}"
            )


def _cluster(row: Row, source: TrainSource, phrasings: Phrasings | None) -> str:
    if CLUSTER in source.columns:
        return text_field(row, CLUSTER)
    return source.cluster or (phrasings.cluster if phrasings else "")


def _describe(
    report: TableReport, row: Row, layout: Layout[Any] | None, phrasings: Phrasings | None
) -> None:
    """Record the detected layout, from the first usable row."""
    if phrasings:
        report.layout = f"{len(phrasings.templates)} instruction templates of {phrasings.path}"
        fields: Sequence[str] = phrasings.fields
    elif layout:
        report.layout, fields = layout.name, layout.fields
    report.fields = tuple(name for name in fields if name in row.fields)
    report.ignored = tuple(str(name) for name in row.fields if name not in (*fields, CLUSTER))
