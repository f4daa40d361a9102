"""Labelled rows as the token sequences that a head reads, with their labels.

Invariant: the sequences come from the engine's `HeadEncoder`, which also encodes a user's texts for
the trained head. Nothing is added to the vocabulary, so any causal model takes a head and keeps its
tokenizer.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from math import ceil, isfinite
from statistics import fmean, pstdev
from typing import Literal

import torch
from torch.nn.utils.rnn import pad_sequence

from chatapp.engine.backends.head import HeadEncoder, HeadSpec, HeadTask, Sequences
from chatapp.engine.model import Tokenizer
from finetune.config.objectives import Head
from finetune.config.sections import ConfigError, Data, FinetuneConfig, TooLong, TrainSource
from finetune.data.batches import Tensors, collate
from finetune.data.formats import Labelled, read_labelled
from finetune.data.preparation import HELD_OUT, length_of
from finetune.data.tables import BadRow, draw, is_held_out
from finetune.objectives.objective import ModelText, RowSets

ROLES: dict[HeadTask, tuple[str, ...]] = {
    "classification": ("text", "label"),
    "entailment": ("premise", "hypothesis", "label"),
    "similarity": ("first", "second", "label"),
    "multiple-choice": ("context", "choices", "label"),
}
"""The fields of a row, by task; rewards are trained on preferences."""


@dataclass(frozen=True, slots=True)
class HeadExample:
    """A row as tokens: one sequence, two orders of a pair, or one sequence per choice.

    label: the index of the class or choice; for regression the number itself.
    """

    sequences: Sequences
    label: float
    key: str


class HeadRows:
    """Examples as rows of tensors, each (sequences, tokens); padding is at the right.

    response_mask marks the token of each sequence where the head reads, see `HeadSpec.reads`;
    aux_mask all tokens that L1 predicts. Scalars of a row: its label, and its number of sequences.
    """

    def __init__(self, examples: Sequence[HeadExample], pad_id: int, reads: str = "last") -> None:
        self.examples, self.reads = examples, reads
        self.pad_id = pad_id
        self.lengths = [max(map(len, example.sequences)) for example in examples]
        self.aux_labels = sum(len(ids) - 1 for example in examples for ids in example.sequences)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Tensors:
        example = self.examples[index]
        ids = [torch.tensor(sequence) for sequence in example.sequences]
        real = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
        lengths = real.sum(1, keepdim=True)
        positions = torch.arange(real.shape[1]).expand_as(real)
        return {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self.pad_id),
            "position_ids": positions,
            "example_ids": real,
            "response_mask": positions == (lengths - 1 if self.reads == "last" else 0),
            "aux_mask": (positions > 0) & (positions < lengths),
            "label": torch.tensor(example.label),
            "sequences": torch.tensor(len(ids)),
        }


class RowEncoder:
    """Labelled rows to a head's sequences, under a policy for those that are too long.

    start, window: see `HeadEncoder`.
    """

    def __init__(
        self,
        spec: HeadSpec,
        tokenizer: Tokenizer,
        start: Sequence[int],
        window: int,
        too_long: TooLong,
    ) -> None:
        self.spec, self.too_long = spec, too_long
        self._encoder = HeadEncoder(spec, tokenizer, start, window)

    def encode(self, row: Labelled) -> HeadExample | None:
        """A row's sequences and label; None when it is dropped for its length.

        Raises BadRow and ConfigError.
        """
        texts = [row.fields[role] for role in ROLES[self.spec.task][:-1]]
        sequences = self._encoder.sequences(texts, cut=False)
        tokens, most = max(map(len, sequences)), self._encoder.length
        if tokens > most and self.too_long == "drop":
            return None
        if tokens > most and self.too_long == "raise":
            raise ConfigError(
                f"{row.location}: the row has {tokens} tokens, the model takes {most}; set "
                "data.too_long to drop or truncate-prompt"
            )
        if tokens > most:
            sequences = self._encoder.sequences(texts)
        return HeadExample(sequences, _label(row, self.spec), row.key)


def _label(row: Labelled, spec: HeadSpec) -> float:
    label = row.fields["label"]
    if spec.scale:
        number = _number(row)
        if number is None:
            raise BadRow("no number", f"{row.location}: label is {label!r}; expected a number")
        return number
    choices = row.fields["choices"] if spec.task == "multiple-choice" else spec.labels
    if label in choices:
        return choices.index(str(label))
    if spec.task == "multiple-choice":
        if isinstance(label, str) and label.isdigit() and int(label) < len(choices):
            return int(label)
        expected = f"one of the choices, or a number from 0 to {len(choices) - 1}"
    else:
        expected = f"one of {', '.join(map(repr, spec.labels))}"
    raise BadRow("unknown label", f"{row.location}: label is {label!r}; expected {expected}")


def _number(row: Labelled) -> float | None:
    """A label as a number; None when it is none."""
    try:
        number = float(str(row.fields["label"]))
    except ValueError:
        return None
    return number if isfinite(number) else None


def classes(rows: Iterable[Labelled]) -> tuple[str, ...]:
    """The labels that occur, sorted; whole numbers by value, before words."""
    labels = {str(row.fields["label"]) for row in rows}

    def order(label: str) -> tuple[bool, int, str]:
        return not label.isdecimal(), int(label) if label.isdecimal() else 0, label

    return tuple(sorted(labels, key=order))


def read_labelled_rows(
    config: FinetuneConfig, text: ModelText, spec: HeadSpec | None = None
) -> tuple[HeadSpec, RowSets]:
    """The labelled rows of a configuration with a [head]. Raises ConfigError.

    spec: of an existing head; None defines a new one.
    """
    data, head = config.data, config.head
    assert head is not None
    for key in ("template", "held_out_clusters"):
        if getattr(data, key):
            raise ConfigError(f"data.{key} has no meaning with a head; leave it out")
    tokenizer, start = text.tokenizer, text.start
    window = text.window + len(start)
    files, share = ([], data.held_out) if isinstance(data.held_out, float) else (data.held_out, 0.0)
    dropped: Counter[str] = Counter()
    sources = [(source, _read(source, data, head.task, dropped)) for source in data.train]
    apart = [row for source in files for row in _read(source, data, head.task, dropped)]
    kept_out = {row.key for row in apart}
    known = [row for _, rows in sources for row in rows]
    reads: Literal["first", "last"] = "first" if text.files.is_masked else "last"
    spec = spec or replace(_spec(head, known, length_of(data, window)), reads=reads)
    encoder = RowEncoder(spec, tokenizer, start, window, data.too_long)

    train: list[HeadExample] = []
    for source, rows in sources:
        mine = [r for r in rows if r.key not in kept_out and not is_held_out(r.key, share)]
        examples = list(_encoded(mine, encoder, data, dropped))
        for turn in range(ceil(source.weight)):
            train += draw(examples, min(1.0, source.weight - turn), config.seed)
    evaluation_rows = [*apart, *(row for row in known if is_held_out(row.key, share))]
    held_out = list(_encoded(evaluation_rows, encoder, data, dropped))
    if not train:
        raise ConfigError("data.train: no row is left to train on")
    digest = sha256(repr([(e.sequences, e.label) for e in [*train, *held_out]]).encode())
    rows_to_learn = HeadRows(train, tokenizer.end_id, spec.reads)
    return spec, RowSets(
        train=rows_to_learn,
        held_out={HELD_OUT: HeadRows(held_out, tokenizer.end_id, spec.reads)} if held_out else {},
        collate=partial(collate, pad_id=tokenizer.end_id),
        examples=len(train),
        dropped=dropped,
        hashes={"rows of data.train and data.held_out": digest.hexdigest()},
        response_labels=len(train),
        aux_labels=rows_to_learn.aux_labels,
    )


def _spec(head: Head, rows: Sequence[Labelled], length: int) -> HeadSpec:
    """The named classes, else those that occur, or the scale of the numbers.

    Raises ConfigError.
    """
    labels: tuple[str, ...] = ()
    scale = None
    if head.problem_type == "regression":
        if head.task == "multiple-choice" or head.labels:
            what = "task multiple-choice" if head.task == "multiple-choice" else "labels"
            raise ConfigError(f"head.problem_type: regression has no meaning with head.{what}")
        numbers = [number for number in map(_number, rows) if number is not None]
        if not numbers:
            raise ConfigError("head.problem_type: regression needs labels that are numbers")
        scale = fmean(numbers), pstdev(numbers) or 1.0
    elif head.task != "multiple-choice":
        labels = tuple(head.labels) or classes(rows)
        if len(labels) < 2:
            raise ConfigError(
                f"head.labels: a {head.task} needs two labels or more, found {list(labels)}"
            )
    return HeadSpec(head.task, labels, head.delimiter, scale, length)


def _encoded(
    rows: Iterable[Labelled], encoder: RowEncoder, data: Data, dropped: Counter[str]
) -> Iterator[HeadExample]:
    """The usable rows; the others are raised or counted."""
    for row in rows:
        try:
            example = encoder.encode(row)
        except BadRow as error:
            if data.bad_rows == "raise":
                raise
            dropped[error.reason] += 1
            continue
        if example is None:
            dropped["too long"] += 1
        else:
            yield example


def _read(source: TrainSource, data: Data, task: HeadTask, dropped: Counter[str]) -> list[Labelled]:
    rows = []
    for row in read_labelled(source, ROLES[task], data.bad_rows):
        if isinstance(row, BadRow):
            dropped[row.reason] += 1
        else:
            rows.append(row)
    return rows
