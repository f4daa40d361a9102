"""Linear heads on a language model (Radford et al., 2018, section 3.3), and their rows.

A linear layer reads the last block's state at the last token; of a masked model, what its own head
would read at the first, [CLS]. As in the paper the objective is L2, here the cross-entropy of the
labels, or the mean squared error of numbers, plus λ·L1 over the sequences.

Invariant: sequences come from the engine's `HeadEncoder`, which also encodes a user's texts for the
trained head; only `l3` computes L1, so a head's auxiliary loss is that of a chat; and only the
engine's `HeadModel` reads texts with a trained head. The layer is a child of the model,
`task_head`, and is stored next to the model's files, never in them, so the folder loads as a
language model too, and any causal model takes a head and keeps its tokenizer.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from math import ceil, isfinite
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.text import Text
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from chatapp.common.foreign import printable
from chatapp.engine.backends.head import (
    HEAD_FILE,
    HEAD_WEIGHTS,
    HeadEncoder,
    HeadModel,
    HeadSpec,
    HeadTask,
    Sequences,
    head_logits,
)
from chatapp.engine.errors import ModelError
from chatapp.engine.model import PieceTokenizer
from chatapp.lab.prompt_parts import rank_correlation
from chatapp.rows.reading import BadRow
from chatapp.tasks.metrics import macro_f1
from finetune.config.objectives import Head, L3Settings, Metric
from finetune.config.sections import ConfigError, Data, FinetuneConfig, TooLong, TrainSource
from finetune.data.batches import Tensors, TrainingRows, collate
from finetune.data.formats import Labelled, read_labelled
from finetune.data.preparation import HELD_OUT, Report, length_of
from finetune.data.split import draw, is_held_out
from finetune.objectives.l3 import L3, count_labels
from finetune.objectives.objective import (
    Evaluator,
    Figures,
    ModelText,
    Objective,
    RowSets,
    Scalar,
    Tell,
    through_head,
)

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


def encode_labelled(
    row: Labelled, spec: HeadSpec, encoder: HeadEncoder, too_long: TooLong
) -> HeadExample | None:
    """A labelled row's sequences and label; None when it is dropped for its length.

    Raises BadRow and ConfigError.
    """
    texts = [row.fields[role] for role in ROLES[spec.task][:-1]]
    sequences = encoder.sequences(texts, cut=False)
    tokens, most = max(map(len, sequences)), encoder.length
    if tokens > most and too_long == "drop":
        return None
    if tokens > most and too_long == "raise":
        raise ConfigError(
            f"{row.location}: the row has {tokens} tokens, the model takes {most}; set "
            "data.too_long to drop or truncate-prompt"
        )
    if tokens > most:
        sequences = encoder.sequences(texts)
    return HeadExample(sequences, _label(row, spec), row.key)


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
    report = Report()
    sources = [(source, _read(source, data, head.task, report)) for source in data.train]
    apart = [row for source in files for row in _read(source, data, head.task, report)]
    kept_out = {row.key for row in apart}
    known = [row for _, rows in sources for row in rows]
    reads: Literal["first", "last"] = "first" if text.files.is_masked else "last"
    spec = spec or replace(_spec(head, known, length_of(data, window)), reads=reads)
    encoder = HeadEncoder(spec, tokenizer, start, window)

    train: list[HeadExample] = []
    for source, rows in sources:
        mine = [r for r in rows if r.key not in kept_out and not is_held_out(r.key, share)]
        examples = list(_encoded(mine, spec, encoder, data, report))
        for turn in range(ceil(source.weight)):
            train += draw(examples, min(1.0, source.weight - turn), config.seed)
    evaluation_rows = [*apart, *(row for row in known if is_held_out(row.key, share))]
    held_out = list(_encoded(evaluation_rows, spec, encoder, data, report))
    if not train:
        raise ConfigError("data.train: no row is left to train on")
    digest = sha256(repr([(e.sequences, e.label) for e in [*train, *held_out]]).encode())
    rows_to_learn = HeadRows(train, tokenizer.end_id, spec.reads)
    return spec, RowSets(
        train=rows_to_learn,
        held_out={HELD_OUT: HeadRows(held_out, tokenizer.end_id, spec.reads)} if held_out else {},
        collate=partial(collate, pad_id=tokenizer.end_id),
        examples=len(train),
        hashes={"rows of data.train and data.held_out": digest.hexdigest()},
        response_labels=len(train),
        aux_labels=rows_to_learn.aux_labels,
        report=report,
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
    rows: Iterable[Labelled], spec: HeadSpec, encoder: HeadEncoder, data: Data, report: Report
) -> Iterator[HeadExample]:
    """The usable rows; the others are raised or counted."""
    for row in rows:
        try:
            example = encode_labelled(row, spec, encoder, data.too_long)
        except BadRow as error:
            if data.bad_rows == "raise":
                raise
            report.drop(error.reason, error)
            continue
        if example is None:
            report.dropped["too long"] += 1
        else:
            yield example


def _read(source: TrainSource, data: Data, task: HeadTask, report: Report) -> list[Labelled]:
    rows = []
    for row in read_labelled(source, ROLES[task], data.bad_rows):
        if isinstance(row, BadRow):
            report.drop(row.reason, row)
        else:
            rows.append(row)
    return rows


_STRETCH = 256
"""Rows between two progress reports."""

MODULE = "task_head"


def add_head(model: Any, spec: HeadSpec, seed: int) -> None:
    """Add a new head to a model, with the paper's initial weights, N(0, 0.02)."""
    width = model.get_output_embeddings().weight.shape[1]
    model.task_head = nn.Linear(width, spec.outputs)
    draw = torch.Generator().manual_seed(seed)
    nn.init.normal_(model.task_head.weight, std=0.02, generator=draw)
    nn.init.zeros_(model.task_head.bias)


def load_head_weights(model: Any, folder: Path) -> None:
    """Raises ModelError when the file is broken or of another head."""
    path = folder / HEAD_WEIGHTS
    try:
        model.task_head.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        line = str(error).strip().splitlines()[0]
        raise ModelError(f"{path}: not the weights of this head: {line}") from None


def class_logits(
    head: nn.Module, hidden: Tensor, batch: Tensors, task: HeadTask
) -> tuple[Tensor, Tensor]:
    """Logits (examples, classes or choices), see `head_logits`, and a mask of the examples that
    count, (examples,) bool.
    """
    read = batch["response_mask"].any(1)
    example, states = owners(batch)[read], hidden[batch["response_mask"]].float()
    examples = len(batch["label"])
    counted = torch.zeros(examples, dtype=torch.bool, device=hidden.device)
    counted[example] = True
    return head_logits(head, states, example, examples, task), counted


def owners(batch: Tensors) -> Tensor:
    """The example of each sequence in the batch, (sequences,)."""
    sizes = batch["sequences"]
    return torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)


Output = Sequence[float]
"""Probabilities of the labels or choices of one row; for regression only the number."""


def answer_document(spec: HeadSpec, output: Output, choices: Sequence[str] = ()) -> dict[str, Any]:
    """An answer as plain data: `output` and `label_probabilities`, or the `score` of regression.

    choices: of a multiple-choice row; two may be equal, so its probabilities are a list.
    """
    if spec.scale:
        return {"score": output[0]}
    best = int(np.argmax(output))
    if spec.task == "multiple-choice":
        return {"output": choices[best] if choices else best, "label_probabilities": list(output)}
    probabilities = dict(zip(spec.labels, output, strict=True))
    return {"output": spec.labels[best], "label_probabilities": probabilities}


def head_figures(
    spec: HeadSpec, outputs: Sequence[Output], examples: Sequence[HeadExample]
) -> dict[str, float]:
    """For classes: loss in nats per row, accuracy, the fraction of the most frequent label, and, if
    rows have labels in common, macro-F1. For regression: mse, Pearson's and Spearman's correlation.
    """
    golds = [example.label for example in examples]
    if spec.scale:
        numbers, wanted = np.array([output[0] for output in outputs]), np.array(golds)
        return {
            "mse": float(np.square(numbers - wanted).mean()),
            "pearson": _correlation(numbers, wanted),
            "spearman": rank_correlation(numbers.tolist(), wanted.tolist()) or 0.0,
        }
    answers = [int(np.argmax(output)) for output in outputs]
    chosen = [output[int(gold)] for output, gold in zip(outputs, golds, strict=True)]
    figures = {
        "loss": fmean(-float(np.log(max(probability, 1e-30))) for probability in chosen),
        "accuracy": fmean(answer == gold for answer, gold in zip(answers, golds, strict=True)),
        "majority": max(map(golds.count, set(golds))) / len(golds),
    }
    if spec.labels:  # the choices of multiple choice have no names in common
        figures["macro_f1"] = macro_f1(list(map(str, answers)), list(map(str, golds)))
    return figures


def _correlation(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Pearson's; 0 if one of them is constant and has no correlation."""
    first, second = first - first.mean(), second - second.mean()
    scale = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / scale if scale else 0.0


@dataclass(frozen=True)
class HeadEvaluator(Evaluator):
    """Evaluates a model with a head on labelled rows, encoded by its own spec."""

    def __post_init__(self) -> None:
        assert self.config.head is not None
        if not (self.text.files.path / HEAD_FILE).is_file():
            raise ConfigError(
                f"{self.text.name} has no head; the run has one for {self.config.head.task}"
            )

    @cached_property
    def spec(self) -> HeadSpec:
        return HeadSpec.load(self.text.files.path)

    @property
    def title(self) -> str:
        return f"head: {self.spec.task}"

    def read_rows(self) -> tuple[Sequence[HeadExample], dict[str, Sequence[HeadExample]]]:
        _, sets = read_labelled_rows(self.config, self.text, self.spec)
        held_out = {name: cast(HeadRows, rows).examples for name, rows in sets.held_out.items()}
        return cast(HeadRows, sets.train).examples, held_out

    def extend(self, model: Any) -> None:
        add_head(model, self.spec, seed=0)
        load_head_weights(model, self.text.files.path)

    def measure(self, model: Any, rows: Sequence[HeadExample], tell: Tell) -> Figures:
        """Accuracy, macro-F1 and loss of a head, with the fraction of the most frequent label."""
        head = head_model(model, self.spec, self.text)
        outputs: list[Output] = []
        for start in range(0, len(rows), _STRETCH):
            tell("labels", start)
            outputs += head.outputs(
                [example.sequences for example in rows[start : start + _STRETCH]]
            )
        names = self.spec.labels
        golds = (names[int(row.label)] if names else row.label for row in rows)
        predictions = [
            {"label": gold, **answer_document(self.spec, output)}
            for gold, output in zip(golds, outputs, strict=True)
        ]
        return Figures(head_figures(self.spec, outputs, rows), predictions=predictions)


class WithHead(Objective):
    """An objective that adds a head to the model, which then does not reply."""

    spec: HeadSpec
    added = MODULE
    replies = False

    def extend(self, model: Any, seed: int) -> None:
        add_head(model, self.spec, seed)

    def save(self, model: Any, folder: Path) -> None:
        state = model.task_head.state_dict()
        weights = {key: value.contiguous().cpu() for key, value in state.items()}
        save_file(weights, folder / HEAD_WEIGHTS)
        self.spec.save(folder)

    def load(self, model: Any, folder: Path) -> None:
        load_head_weights(model, folder)


@dataclass(frozen=True, kw_only=True)
class HeadObjective(WithHead, L3):
    """L2 of the labels plus λ·L1 of the text; accuracy is the fraction of correct labels.

    For regression L2 is the mean squared error in variances of the training labels.
    """

    spec: HeadSpec
    evaluator = HeadEvaluator
    uses_template = False

    @classmethod
    def build(cls, config: FinetuneConfig, text: ModelText) -> tuple[Objective, RowSets]:
        if not isinstance(config.objective, L3Settings):
            raise ConfigError(
                f"objective.kind is {config.objective.kind}, which learns from replies; with a "
                "[head] it is l3"
            )
        if text.files.is_masked and config.objective.aux_weight:
            raise ConfigError(
                f"objective.aux_weight is {config.objective.aux_weight:g}, but {text.name} is a "
                "masked model, which sees the tokens that L1 predicts; set it to 0"
            )
        spec, rows = read_labelled_rows(config, text)
        return cls.of(config.objective, spec=spec), rows

    @property
    def scalars(self) -> Mapping[str, Scalar]:
        """Those of `L3`, whose L2 has no perplexity; numbers are never right or wrong."""
        scalars = {**super().scalars, "l2": Scalar("L2", curve=True, metric="loss")}
        if self.spec.scale:
            del scalars["accuracy"]
        return scalars

    def count(self, batches: Iterable[Tensors], call: nn.Module, model: Any) -> Tensor:
        """The number of examples, and of tokens or sequences of L1."""
        batches = list(batches)
        counts = count_labels(batches, self.aux_norm)
        counts[0] = sum(
            len(set(owners(batch)[batch["response_mask"].any(1)].tolist())) for batch in batches
        )
        return counts

    def losses(
        self, call: nn.Module, model: Any, batch: Tensors, counts: Tensor, done: float
    ) -> Tensor:
        lm_head = model.get_output_embeddings()
        unread = {**batch, "response_mask": torch.zeros_like(batch["response_mask"])}

        def compute(hidden: Tensor) -> Tensor:
            text = self.of_hidden(hidden, lm_head, unread, counts, done)
            logits, counted = class_logits(model.task_head, hidden, batch, self.spec.task)
            n_examples = counts[0].clamp(min=1).item()
            l2, *right = self._of_labels(logits[counted].float(), batch["label"][counted])
            l2 = l2 / n_examples
            rest = (total / n_examples for total in right)
            return torch.stack([l2 + text.l3, l2.detach(), text.l1, *rest])

        sees_all = self.spec.reads == "first"
        return through_head(call, model, batch, compute, sees_all=sees_all)

    def _of_labels(self, logits: Tensor, label: Tensor) -> tuple[Tensor, ...]:
        """The loss of examples, and for classes the number of correct ones; sums over
        the examples."""
        if self.spec.scale:
            mean, deviation = self.spec.scale
            return ((logits[:, 0] - (label - mean) / deviation).square().sum(),)
        loss = functional.cross_entropy(logits, label, reduction="sum")
        return loss, (logits.argmax(1) == label).sum()

    def preview(
        self, data: RowSets, tokenizer: PieceTokenizer, marked: bool
    ) -> Mapping[str, Sequence[RenderableType]]:
        rows = cast(HeadRows, data.train)
        labels = [example.label for example in rows.examples]
        if self.spec.scale:
            lines = [
                f"numbers from {min(labels):g} to {max(labels):g}, mean {self.spec.scale[0]:g}, "
                f"standard deviation {self.spec.scale[1]:g}"
            ]
        else:
            lines = [
                f"{count:,} {self.spec.labels[label] if self.spec.labels else f'choice {label}'}"
                for label, count in sorted(Counter(map(int, labels)).items())
            ]
        lines.append(
            f"{fmean(rows.lengths):.0f} tokens a row on average, at most {max(rows.lengths):,}"
        )
        return {"Labels": [Text(printable(line)) for line in lines]}

    @property
    def best_metrics(self) -> tuple[Metric, ...]:
        if self.spec.scale:
            return ("loss", "pearson", "spearman")
        return ("loss", "accuracy", "macro_f1") if self.spec.labels else ("loss", "accuracy")

    def answer_figures(self, model: Any, rows: TrainingRows, text: ModelText) -> dict[str, float]:
        examples = cast(HeadRows, rows).examples
        head = head_model(model, self.spec, text)
        return head_figures(self.spec, head.outputs([e.sequences for e in examples]), examples)

    def metrics(self, means: Mapping[str, float], done: float) -> dict[str, float]:
        """loss in nats per row and accuracy, or loss and mse, in squared units; l1 in nats per
        token.
        """
        mse = {"mse": means["l2"] * self.spec.scale[1] ** 2} if self.spec.scale else {}
        return super().metrics(means, done) | mse


def head_model(model: Any, spec: HeadSpec, text: ModelText) -> HeadModel:
    """A network with its head as the engine's model, which reads texts."""
    layer = model.task_head
    return HeadModel(text.name, text.files, spec, model, layer, text.tokenizer, text.start)
