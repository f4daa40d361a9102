"""The rows of objectives on replies: chats, plain texts and few-shot prompts, and pairs with their
log-probabilities under the reference, which are computed once and stored on disk.

The reference is the model with which a run begins. For an adapter that is the base with the adapter
switched off; with full tuning it is gone after the first step, so a run stores its values.

Invariant: every row begins with the special tokens of the model's prompts. A row of pairs has two
sequences, chosen and rejected or a reply and a mismatched one, with their examples in the same
order. Stored log-probabilities are of the rows, weights and precision in the digest; others are
computed again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import Dataset

from chatapp.common.progress import Progress
from chatapp.common.userfiles import whole_file
from chatapp.engine.model import Tokenizer
from finetune.config.objectives import AuxSpan, SupervisedSpan
from finetune.config.sections import FinetuneConfig
from finetune.data.batches import ByLength, Collate, Tensors, TrainingRows, collate, loader
from finetune.data.encoding import Encoded, Span, last_response
from finetune.data.formats import Layout
from finetune.data.packing import Rows, aux_labels, pack, response_labels
from finetune.data.preferences import FIELDS, EncodedFeedback, EncodedPair, FeedbackRow, PairEncoder
from finetune.data.preparation import ExampleSets, RowKind, encode_chats, encode_rows, length_of
from finetune.data.tables import Row
from finetune.objectives.log_probs import token_log_probs
from finetune.objectives.objective import (
    EVALUATION_BATCH,
    ModelText,
    Objective,
    Question,
    RowSets,
    Tell,
    has_adapter,
    through_head,
)

# Rows of several examples are made this long when no example is longer: attention costs more the
# longer a row, and at this length hardly any of it stays empty.
PACKED_LENGTH = 512


def encode_run_chats(config: FinetuneConfig, text: ModelText) -> ExampleSets[Encoded]:
    """The chats, texts and few-shot prompts of a configuration as tokens. Raises ConfigError."""
    template, tokenizer = text.chat_template, text.tokenizer
    return encode_chats(config.data, template, tokenizer, text.window, config.seed, text.start)


def read_chat_rows(config: FinetuneConfig, text: ModelText, span: AuxSpan) -> RowSets:
    """The same as rows. span: the tokens of L1. Raises ConfigError."""
    prepared = encode_run_chats(config, text)
    examples = with_start(prepared.train, text.start)
    if config.data.packing:
        longest = max(len(example.ids) for example in examples)
        limit = min(PACKED_LENGTH, config.data.max_length or text.window)
        train = Rows.packed(examples, span, max(longest, limit), config.seed)
    else:
        train = Rows(examples, span)
    return RowSets(
        train=train,
        held_out={
            name: Rows(with_start(examples, text.start), span)
            for name, examples in prepared.held_out.items()
        },
        collate=partial(collate, pad_id=text.tokenizer.end_id),
        examples=len(examples),
        dropped=prepared.report.dropped,
        hashes=prepared.report.hashes,
        response_labels=sum(int(response_labels(example).sum()) for example in examples),
        aux_labels=sum(int(aux_labels(example, span).sum()) for example in examples),
        report=prepared.report,
    )


def row_questions(
    examples: Sequence[Encoded], tokenizer: Tokenizer, context: int, skip: int = 0
) -> Iterator[Question]:
    """The last question of each example, in their order.

    A plain text has none, and a prompt that fills the window is left out. skip: tokens at the start
    of a row that the model itself puts there.
    """
    for example in examples:
        ids, spans = example.ids[skip:], example.spans[skip:]
        response = last_response(spans)
        first = response.start
        if 0 < first < context:
            yield Question(
                ids[:first].tolist(),
                tokenizer.decode(ids[:first][spans[:first] == Span.PROMPT].tolist()).strip(),
                tokenizer.decode(ids[response].tolist()).strip(),
            )


def with_start(examples: list[Encoded], start: list[int]) -> list[Encoded]:
    """Add the special tokens of the model's prompts before the examples."""
    if not start:
        return examples
    ids = np.array(start, dtype=np.int32)
    spans = np.full(len(start), Span.TEMPLATE, dtype=np.uint8)
    return [
        replace(e, ids=np.concatenate([ids, e.ids]), spans=np.concatenate([spans, e.spans]))
        for e in examples
    ]


class PairRows(Dataset[Tensors]):
    """Rows of one pair or several, each key (2, T); see `Rows` for their keys.

    In addition `value`, the verdict on each pair, on all its tokens (float): the margin of a
    preference; of a verdict 1 for a good reply, 0 for a bad one. And `reference`: the
    log-probability of each label under the reference (float), zeros until it is computed. L1 has no
    labels in the second sequence.
    """

    def __init__(
        self,
        first: Sequence[Encoded],
        second: Sequence[Encoded],
        values: Sequence[float],
        span: SupervisedSpan,
        pad_id: int,
        packed: tuple[int, int] | None = None,
    ) -> None:
        """packed: the least tokens of a row with several pairs, and the seed of their order."""
        lengths = [max(len(a.ids), len(b.ids)) for a, b in zip(first, second, strict=True)]
        bins = None
        if packed:
            size, seed = packed
            bins = pack(lengths, max([size, *lengths]), seed)
        self.first, self.second = Rows(first, span, bins), Rows(second, span, bins)
        self.values = values
        self.pad_id = pad_id
        self.lengths = [
            max(pair) for pair in zip(self.first.lengths, self.second.lengths, strict=True)
        ]
        self.reference: list[Tensor] | None = None

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index: int) -> Tensors:
        row = collate([self.first[index], self.second[index]], self.pad_id)
        row["aux_mask"][1] = False
        verdicts = torch.tensor([0.0, *(self.values[pair] for pair in self.first.bins[index])])
        zeros = torch.zeros(row["input_ids"].shape)
        row["value"] = verdicts[row["example_ids"]]
        row["reference"] = zeros if self.reference is None else self.reference[index]
        return row


def encode_feedback(
    config: FinetuneConfig, text: ModelText, detect: Callable[[Row], Layout[FeedbackRow]]
) -> ExampleSets[EncodedFeedback]:
    """The feedback rows of a configuration as tokens. Raises ConfigError."""
    data = config.data
    length = length_of(data, text.window)
    encoder = PairEncoder(text.chat_template, text.tokenizer, length, data.too_long, text.start)
    return encode_rows(data, RowKind(FIELDS, detect, encoder), config.seed)


class RowMaker:
    """Makes rows of pairs as configured.

    start: tokens before each sequence. length: most tokens of a sequence behind them.
    """

    def __init__(
        self,
        span: SupervisedSpan,
        pad_id: int,
        start: list[int],
        length: int,
        packed: tuple[int, int] | None,
    ) -> None:
        self.span, self.pad_id, self.start, self.packed = span, pad_id, start, packed
        self.length = length

    def rows(
        self, first: Sequence[Encoded], second: Sequence[Encoded], values: Sequence[float]
    ) -> PairRows:
        first, second = (with_start(list(examples), self.start) for examples in (first, second))
        return PairRows(first, second, values, self.span, self.pad_id, self.packed)


MakeRows = Callable[[Sequence[EncodedFeedback], RowMaker], PairRows]
"""Makes rows of examples."""


def pair_row_sets(
    prepared: ExampleSets[EncodedFeedback],
    config: FinetuneConfig,
    text: ModelText,
    span: SupervisedSpan,
    make: MakeRows,
) -> RowSets:
    """The rows of an objective, for training (packed, if configured) and evaluation.

    span: the tokens of L1 in the first sequences.
    """
    pad_id, length = text.tokenizer.end_id, length_of(config.data, text.window)
    packed = (config.data.max_length or PACKED_LENGTH, config.seed) if config.data.packing else None
    train = make(prepared.train, RowMaker(span, pad_id, text.start, length, packed))
    unpacked = RowMaker(span, pad_id, text.start, length, None)
    replies = [*train.first.examples, *train.second.examples]
    return RowSets(
        train=train,
        held_out={name: make(rows, unpacked) for name, rows in prepared.held_out.items()},
        collate=partial(collate, pad_id=pad_id),
        examples=len(train.first.examples),
        dropped=prepared.report.dropped,
        hashes=prepared.report.hashes,
        response_labels=sum(int(response_labels(reply).sum()) for reply in replies),
        aux_labels=sum(int(aux_labels(example, span).sum()) for example in train.first.examples),
        report=prepared.report,
    )


def preference_rows(rows: Sequence[EncodedFeedback], maker: RowMaker) -> PairRows:
    """Rows of preferences: chosen, rejected, and the margin."""
    pairs = cast(Sequence[EncodedPair], rows)
    return maker.rows(
        [pair.chosen for pair in pairs],
        [pair.rejected for pair in pairs],
        [pair.margin for pair in pairs],
    )


def mean_losses(
    objective: Objective, model: Any, rows: TrainingRows, end_id: int, what: str, tell: Tell
) -> tuple[dict[str, float], Tensor]:
    """The means of an objective's scalars over rows, by name, and their divisors.

    what: the work, for `tell`.
    """
    batches = loader(
        rows, ByLength(rows.lengths), EVALUATION_BATCH, partial(collate, pad_id=end_id)
    )
    counts = objective.count(batches, model, model)
    total = torch.zeros(len(objective.names), dtype=torch.float64)
    for number, batch in enumerate(batches):
        tell(what, number * EVALUATION_BATCH)
        here = {key: value.to(model.device) for key, value in batch.items()}
        total += objective.losses(model, model, here, counts, 0.0).cpu()
    return dict(zip(objective.names, total.tolist(), strict=True)), counts


REFERENCE_FILE = "reference.safetensors"
_BATCH = 8


def give_reference(
    model: Any,
    sets: Mapping[str, PairRows],
    collate: Collate,
    precision: str,
    progress: Progress,
    path: Path | None = None,
    digest: str = "",
) -> None:
    """Add the reference to row sets: from a file, else computed, and stored there.

    model: the initial model of the run, on its device. digest: of rows and weights.
    """
    shapes = {name: [row_shape(rows, i) for i in range(len(rows))] for name, rows in sets.items()}
    described = sha256(repr((digest, precision, shapes)).encode()).hexdigest()
    flat = _read(path, described) if path else None
    total, done = sum(map(len, sets.values())), 0
    if flat is None:
        flat = {}
        for name, rows in sets.items():

            def tell(rows_done: int, before: int = done) -> None:
                progress(before + rows_done, total)

            computed = log_probs_of(model, rows, collate, precision, tell)
            flat[name] = torch.cat([part.flatten() for part in computed])
            done += len(rows)
        if path:
            _write(path, flat, described)
    for name, rows in sets.items():
        sizes = [height * width for height, width in shapes[name]]
        parts = torch.split(flat[name], sizes)
        rows.reference = [p.view(s) for p, s in zip(parts, shapes[name], strict=True)]


def row_shape(rows: PairRows, index: int) -> tuple[int, int]:
    """Sequences and tokens of a row."""
    return 2, rows.lengths[index]


@torch.no_grad()
def log_probs_of(
    model: Any, rows: PairRows, collate: Collate, precision: str, tell: Callable[[int], None]
) -> list[Tensor]:
    """log p of the labels of each row, (2, tokens) on the CPU, 0 for other tokens."""
    model.eval()
    head = model.get_output_embeddings()
    order = list(ByLength(rows.lengths))
    by_index: dict[int, Tensor] = {}
    device = next(model.parameters()).device
    cast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
    for batch in loader(rows, ByLength(rows.lengths), _BATCH, collate):
        here = {key: value.to(device) for key, value in batch.items()}

        def compute(hidden: Tensor, here: dict[str, Tensor] = here) -> Tensor:
            return token_log_probs(hidden, head, here, here["response_mask"])

        with cast, _adapter_off(model):
            logps = through_head(model, model, here, compute).cpu()
        for number in range(len(logps) // 2):
            index = order[len(by_index)]
            by_index[index] = logps[2 * number : 2 * number + 2, : rows.lengths[index]].clone()
        tell(len(by_index))
    return [by_index[index] for index in range(len(rows))]


def _adapter_off(model: Any) -> AbstractContextManager[Any]:
    return model.disable_adapter() if has_adapter(model) else nullcontext()


def _read(path: Path, described: str) -> dict[str, Tensor] | None:
    """None when the file is missing, of another run or broken."""
    try:
        with safe_open(path, "pt") as file:
            if (file.metadata() or {}).get("of") != described:
                return None
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None


def _write(path: Path, flat: Mapping[str, Tensor], described: str) -> None:
    with whole_file(path) as draft:
        save_file(dict(flat), draft, metadata={"of": described})
