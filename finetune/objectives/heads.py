"""Linear heads on a language model (Radford et al., 2018, section 3.3 and figure 1).

A task's input becomes one or more token sequences: start, text (for two texts with a delimiter
between them), extract. A linear layer reads the last block's state at the extract token. As
in the paper the training objective is L2, the cross-entropy of the labels, plus λ·L1 over the
sequences. The one invariant: nothing is added to the vocabulary. Start and extract are the
end-of-text token, which GPT-2 has seen between all its documents, and the delimiter is plain
text, so any causal model takes a head and keeps its tokenizer.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from chatapp.engine.checkpoint import ModelError, read_json
from chatapp.engine.model import Tokenizer
from finetune.config import ConfigError, Data, FinetuneConfig, TooLong, TrainSource
from finetune.data.corpus import draw
from finetune.data.formats import Labelled, is_held_out, read_labelled
from finetune.data.preparation import HELD_OUT, LONGEST
from finetune.data.tables import BadRow
from finetune.objectives.l3 import Losses, count_labels, objective
from finetune.trainer import ObjectiveTrainer, Row, in_place_of, model_inputs

Task = Literal["classification", "entailment", "similarity", "multiple-choice"]

ROLES: dict[Task, tuple[str, ...]] = {
    "classification": ("text", "label"),
    "entailment": ("premise", "hypothesis", "label"),
    "similarity": ("first", "second", "label"),
    "multiple-choice": ("context", "choices", "label"),
}
"""The fields of a row, by task."""

HEAD_FILE = "head.json"
HEAD_WEIGHTS = "head.safetensors"


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """A task and its classes. Of multiple choice the labels are empty: the choices differ."""

    task: Task
    labels: tuple[str, ...]
    delimiter: str

    @property
    def outputs(self) -> int:
        return 1 if self.task == "multiple-choice" else len(self.labels)

    def save(self, folder: Path) -> None:
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        (folder / HEAD_FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "HeadSpec":
        """Raises ModelError."""
        path = folder / HEAD_FILE
        match read_json(path):
            case {"task": str(task), "labels": [*labels], "delimiter": str(delimiter)} if (
                task in get_args(Task) and all(isinstance(label, str) for label in labels)
            ):
                return cls(task, tuple(labels), delimiter)  # type: ignore[arg-type]
        raise ModelError(f"{path}: expected the keys task, labels and delimiter of a head")


@dataclass(frozen=True, slots=True)
class HeadExample:
    """A row as tokens: one sequence, two orders of a pair, or one sequence a choice."""

    sequences: tuple[tuple[int, ...], ...]
    label: int
    key: str


def classes(rows: Iterable[Labelled]) -> tuple[str, ...]:
    """The labels that occur, sorted; numbers by value."""
    found = {str(row.fields["label"]) for row in rows}
    return tuple(sorted(found, key=lambda text: (not text.isdigit(), text.zfill(9), text)))


def encode_row(
    row: Labelled,
    spec: HeadSpec,
    tokenizer: Tokenizer,
    start: Sequence[int],
    length: int,
    too_long: TooLong,
) -> HeadExample | None:
    """A row's sequences, none longer than `length`; None when it is dropped for its length.

    start: what the model expects before any text; the end-of-text token when it is empty.
    Under a truncating policy the end of the longest text is cut, never the delimiter or the
    extract token. Raises BadRow and ConfigError.
    """
    start = start or [tokenizer.end_id]
    texts = [row.fields[role] for role in ROLES[spec.task][:-1]]
    match spec.task:
        case "similarity":
            pairs = [texts, texts[::-1]]
        case "multiple-choice":
            pairs = [[texts[0], choice] for choice in texts[1]]
        case _:
            pairs = [texts]
    delimiter = tokenizer.encode(spec.delimiter)
    sequences = []
    for pair in pairs:
        parts = [tokenizer.encode(str(text).strip()) for text in pair]
        surplus = len(start) + sum(map(len, parts)) + len(delimiter) * (len(parts) - 1) + 1 - length
        if surplus > 0 and too_long == "drop":
            return None
        if surplus > 0 and too_long == "raise":
            raise ConfigError(
                f"{row.place}: the row has {surplus + length} tokens, the model takes {length}; "
                "set data.too_long to drop or truncate-prompt"
            )
        for _ in range(surplus):
            max(parts, key=len).pop()
        joined = parts[0] if len(parts) == 1 else [*parts[0], *delimiter, *parts[1]]
        sequences.append((*start, *joined, tokenizer.end_id))
    return HeadExample(tuple(sequences), _label(row, spec), row.key)


def _label(row: Labelled, spec: HeadSpec) -> int:
    label = row.fields["label"]
    choices = row.fields["choices"] if spec.task == "multiple-choice" else spec.labels
    if label in choices:
        return choices.index(str(label))
    if spec.task == "multiple-choice":
        if isinstance(label, str) and label.isdigit() and int(label) < len(choices):
            return int(label)
        expected = f"one of the choices, or a number from 0 to {len(choices) - 1}"
    else:
        expected = f"one of {', '.join(map(repr, spec.labels))}"
    raise BadRow("unknown label", f"{row.place}: label is {label!r}; expected {expected}")


class HeadRows:
    """Examples as rows of tensors, each (sequences, tokens); padding stands at the right.

    response_mask marks the extract tokens, where the head reads; aux_mask all tokens that L1
    predicts.
    """

    def __init__(self, examples: Sequence[HeadExample], pad_id: int) -> None:
        self.examples = examples
        self.pad_id = pad_id
        self.lengths = [max(map(len, each.sequences)) for each in examples]
        self.aux_labels = sum(len(ids) - 1 for each in examples for ids in each.sequences)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Row:
        example = self.examples[index]
        ids = [torch.tensor(sequence) for sequence in example.sequences]
        real = pad_sequence([torch.ones_like(each) for each in ids], batch_first=True)
        lengths = real.sum(1, keepdim=True)
        places = torch.arange(real.shape[1]).expand_as(real)
        return {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self.pad_id),
            "position_ids": places,
            "example_ids": real,
            "response_mask": places == lengths - 1,
            "aux_mask": (places > 0) & (places < lengths),
            "label": torch.tensor(example.label),
        }


@dataclass(frozen=True, slots=True)
class PreparedHead:
    """Rows to train on and to measure, what identifies them, and what was dropped and why."""

    train: HeadRows
    held_out: dict[str, HeadRows]
    hashes: dict[str, str]
    dropped: Counter[str]


def prepare_head(
    config: FinetuneConfig, tokenizer: Tokenizer, window: int, start: Sequence[int]
) -> tuple[HeadSpec, PreparedHead]:
    """Read and encode the labelled rows of a configuration with a [head]. Raises ConfigError."""
    data, head = config.data, config.head
    assert head is not None
    for key in ("template", "held_out_clusters"):
        if getattr(data, key):
            raise ConfigError(f"data.{key} has no meaning with a head; leave it out")
    length = min(window + len(start), LONGEST) if data.max_length is None else data.max_length
    share = data.held_out if isinstance(data.held_out, float) else 0.0
    dropped: Counter[str] = Counter()
    files = [] if isinstance(data.held_out, float) else data.held_out
    sources = [(source, _read(source, data, head.task, dropped)) for source in data.train]
    apart = [row for source in files for row in _read(source, data, head.task, dropped)]
    kept_out = {row.key for row in apart}
    known = [row for _, rows in sources for row in rows]
    labels = tuple(head.labels) or (() if head.task == "multiple-choice" else classes(known))
    if len(labels) < 2 and head.task != "multiple-choice":
        raise ConfigError(
            f"head.labels: a {head.task} needs two labels or more, found {list(labels)}"
        )
    spec = HeadSpec(head.task, labels, head.delimiter)

    def encoded(rows: Iterable[Labelled]) -> list[HeadExample]:
        examples = []
        for row in rows:
            try:
                example = encode_row(row, spec, tokenizer, start, length, data.too_long)
            except BadRow as error:
                if data.bad_rows == "raise":
                    raise
                dropped[error.reason] += 1
                continue
            if example is None:
                dropped["too long"] += 1
            else:
                examples.append(example)
        return examples

    train: list[HeadExample] = []
    for source, rows in sources:
        mine = [r for r in rows if r.key not in kept_out and not is_held_out(r.key, share)]
        examples = encoded(mine)
        for turn in range(ceil(source.weight)):
            train += draw(examples, min(1.0, source.weight - turn), config.seed)
    held_out = encoded([*apart, *(row for row in known if is_held_out(row.key, share))])
    if not train:
        raise ConfigError("data.train: no row is left to train on")
    measured = {HELD_OUT: HeadRows(held_out, tokenizer.end_id)} if held_out else {}
    digest = sha256(repr([(e.sequences, e.label) for e in [*train, *held_out]]).encode())
    hashes = {"rows of data.train and data.held_out": digest.hexdigest()}
    return spec, PreparedHead(HeadRows(train, tokenizer.end_id), measured, hashes, dropped)


def _read(source: TrainSource, data: Data, task: Task, dropped: Counter[str]) -> list[Labelled]:
    rows = []
    for row in read_labelled(source, ROLES[task], data.bad_rows):
        if isinstance(row, BadRow):
            dropped[row.reason] += 1
        else:
            rows.append(row)
    return rows


def collate(rows: list[Row], pad_id: int) -> Row:
    """Rows of sequences as one batch. `example` (sequences,) says whose each sequence is."""
    width = max(row["input_ids"].shape[1] for row in rows)
    padding = {"input_ids": pad_id}
    batch = {
        key: torch.cat(
            [
                functional.pad(row[key], (0, width - row[key].shape[1]), value=padding.get(key, 0))
                for row in rows
            ]
        )
        for key in rows[0]
        if key != "label"
    }
    counts = torch.tensor([len(row["input_ids"]) for row in rows])
    batch["example"] = torch.arange(len(rows)).repeat_interleave(counts)
    batch["label"] = torch.stack([row["label"] for row in rows])
    return batch


def class_logits(head: nn.Module, hidden: Tensor, batch: Row, task: Task) -> tuple[Tensor, Tensor]:
    """Logits (examples, classes or choices), and which examples count, (examples,) bool.

    The states at the extract tokens of the two orders of a similar pair are summed before the
    head; of multiple choice each candidate's score is its own logit, absent ones are -inf.
    """
    read = batch["response_mask"].any(1)
    example, states = batch["example"][read], hidden[batch["response_mask"]].float()
    examples = len(batch["label"])
    counted = torch.zeros(examples, dtype=torch.bool, device=hidden.device)
    counted[example] = True
    if task != "multiple-choice":
        summed = torch.zeros(examples, states.shape[1], device=hidden.device)
        return head(summed.index_add(0, example, states)), counted
    scores = head(states)[:, 0].float()
    sizes = torch.bincount(example, minlength=examples)
    place = torch.arange(len(example), device=hidden.device) - (sizes.cumsum(0) - sizes)[example]
    logits = torch.full((examples, max(1, int(sizes.max()))), -torch.inf, device=hidden.device)
    return logits.index_put((example, place), scores), counted


class HeadTrainer(ObjectiveTrainer):
    """Trains a head, and the model below it, on L2 of the labels plus λ·L1 of the text."""

    def __init__(self, *, spec: HeadSpec, **trainer: Any) -> None:
        super().__init__(**trainer)
        self.spec = spec

    def count(self, batches: Sequence[Row]) -> Tensor:
        """Examples, and tokens or sequences of L1."""
        counts = count_labels(batches, self.aux_norm)
        counts[0] = sum(map(_examples_read, batches))
        return counts

    def losses(self, model: nn.Module, batch: Row, counts: Tensor) -> Losses:
        whole = self.accelerator.unwrap_model(model)
        lm_head = whole.get_output_embeddings()
        unread = {**batch, "response_mask": torch.zeros_like(batch["response_mask"])}

        def compute(hidden: Tensor) -> Tensor:
            text = objective(
                hidden,
                lm_head.weight,
                unread,
                counts,
                aux_weight=self.aux_weight,
                aux_norm=self.aux_norm,
                bias=lm_head.bias,
            )
            logits, counted = class_logits(whole.task_head, hidden, batch, self.spec.task)
            logits, label = logits[counted].float(), batch["label"][counted]
            n_examples = counts[0].clamp(min=1).item()
            l2 = functional.cross_entropy(logits, label, reduction="sum") / n_examples
            right = (logits.argmax(1) == label).sum() / n_examples
            return torch.stack([l2 + text.l3, l2.detach(), text.l1, right])

        with in_place_of(lm_head, compute):
            return Losses(*model(**model_inputs(batch)).logits.unbind())

    def measure(self, rows: Any) -> dict[str, float]:
        found = super().measure(rows)
        del found["perplexity"]
        return found

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        state = self.model.state_dict() if state_dict is None else state_dict
        own = {key: value for key, value in state.items() if not key.startswith("task_head.")}
        super()._save(output_dir, own)
        folder = Path(output_dir or self.args.output_dir)
        save_head(self.accelerator.unwrap_model(self.model), self.spec, folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        load_head_weights(self.model, Path(resume_from_checkpoint))


def _examples_read(batch: Row) -> int:
    return len(set(batch["example"][batch["response_mask"].any(1)].tolist()))


def add_head(model: Any, spec: HeadSpec, seed: int) -> None:
    """Put a new head on a model, with the paper's initial weights, N(0, 0.02)."""
    width = model.get_output_embeddings().weight.shape[1]
    model.task_head = nn.Linear(width, spec.outputs)
    draw = torch.Generator().manual_seed(seed)
    nn.init.normal_(model.task_head.weight, std=0.02, generator=draw)
    nn.init.zeros_(model.task_head.bias)


def save_head(model: Any, spec: HeadSpec, folder: Path) -> None:
    """Write the head beside the model's own files."""
    state = {key: value.contiguous().cpu() for key, value in model.task_head.state_dict().items()}
    save_file(state, folder / HEAD_WEIGHTS)
    spec.save(folder)


def load_head(model: Any, folder: Path) -> HeadSpec:
    """Put the head saved in a folder on a model. Raises ModelError."""
    spec = HeadSpec.load(folder)
    add_head(model, spec, seed=0)
    load_head_weights(model, folder)
    return spec


def load_head_weights(model: Any, folder: Path) -> None:
    """Raises ModelError when the file is broken or of another head."""
    path = folder / HEAD_WEIGHTS
    try:
        model.task_head.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        line = str(error).strip().splitlines()[0]
        raise ModelError(f"{path}: not the weights of this head: {line}") from None


class Classifier:
    """A trained head with its model: rows to label probabilities."""

    def __init__(
        self, model: Any, spec: HeadSpec, tokenizer: Tokenizer, start: Sequence[int], length: int
    ) -> None:
        self.model, self.spec = model.eval(), spec
        self.tokenizer, self.start, self.length = tokenizer, start, length

    def predict(self, row: Labelled) -> list[float]:
        """Probabilities in the order of the spec's labels, or of the row's choices.

        A text too long for the model is cut at its end. The row's own label is read but not
        used.
        """
        example = encode_row(
            row, self.spec, self.tokenizer, self.start, self.length, "truncate-prompt"
        )
        assert example is not None
        return self.probabilities(example)

    @torch.inference_mode()
    def probabilities(self, example: HeadExample) -> list[float]:
        """The same of an encoded row."""
        batch = collate([HeadRows([example], self.tokenizer.end_id)[0]], self.tokenizer.end_id)
        found: list[Tensor] = []

        def compute(hidden: Tensor) -> Tensor:
            logits, _ = class_logits(self.model.task_head, hidden, batch, self.spec.task)
            found.append(logits[0].softmax(0))
            return hidden

        with in_place_of(self.model.get_output_embeddings(), compute):
            self.model(**model_inputs(batch))
        probabilities: list[float] = found[0].tolist()
        return probabilities
