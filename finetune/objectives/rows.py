"""The rows of objectives on replies, as chats, plain texts and few-shot prompts, and as pairs with
their log-probabilities under the reference, which are computed once and stored on disk; and how
`finetune check` shows them: lengths, masked examples, pairs side by side.

The reference is the model with which a run begins. For an adapter that is the base with the adapter
switched off; with full tuning it is gone after the first step, so a run stores its values.

Invariant: every row begins with the special tokens of the model's prompts. A row of pairs has two
sequences, chosen and rejected or a reply and a mismatched one, with their examples in the same
order. Stored log-probabilities are of the rows, weights and precision in the digest; others are
computed again. What is shown are the trained tokens and masks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from difflib import SequenceMatcher
from functools import partial
from hashlib import sha256
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import Dataset

from chatapp.common.foreign import printable
from chatapp.common.userfiles import Progress, whole_file
from chatapp.engine.model import PieceTokenizer
from finetune.config.objectives import AuxSpan, SupervisedSpan
from finetune.config.sections import FinetuneConfig
from finetune.data.batches import (
    ByLength,
    Collate,
    Loader,
    Rows,
    Tensors,
    TrainingRows,
    aux_labels,
    collate,
    loader,
    pack,
    response_labels,
)
from finetune.data.encoding import Encoded, ExampleEncoder, Span
from finetune.data.preferences import EncodedFeedback
from finetune.data.preparation import CHATS, Encodes, ExampleSets, RowKind, encode_rows, length_of
from finetune.objectives.log_probs import token_log_probs
from finetune.objectives.objective import (
    EVALUATION_BATCH,
    ModelText,
    Objective,
    RowSets,
    Tell,
    has_adapter,
    through_head,
)

# Rows of several examples are made this long when no example is longer: attention costs more the
# longer a row, and at this length hardly any of it stays empty.
PACKED_LENGTH = 512


def encode_run_rows(
    config: FinetuneConfig, text: ModelText, kind: RowKind[Encodes]
) -> ExampleSets[Encodes]:
    """The rows of a configuration as tokens. Raises ConfigError."""
    data = config.data
    encoder = ExampleEncoder(
        text.chat_template,
        text.tokenizer,
        length_of(data, text.window),
        data.too_long,
        text.start,
        text.files.is_encoder_decoder,
    )
    return encode_rows(data, kind, encoder, config.seed)


def read_chat_rows(config: FinetuneConfig, text: ModelText, span: AuxSpan) -> RowSets:
    """The chats of a configuration as rows. span: the tokens of L1. Raises ConfigError."""
    prepared = encode_run_rows(config, text, CHATS)
    examples = with_start(prepared.train, text.start)
    if config.data.packing:
        limit = min(PACKED_LENGTH, config.data.max_length or text.window)
        train = Rows.packed(examples, span, limit, config.seed)
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
        hashes=prepared.report.hashes,
        response_labels=sum(int(response_labels(example).sum()) for example in examples),
        aux_labels=sum(int(aux_labels(example, span).sum()) for example in examples),
        report=prepared.report,
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
        bins = pack(lengths, *packed) if packed else None
        columns = {"value": torch.tensor(values)}
        self.first, self.second = (Rows(side, span, bins, columns) for side in (first, second))
        self.values = values
        self.pad_id = pad_id
        self.lengths = [
            max(pair) for pair in zip(self.first.lengths, self.second.lengths, strict=True)
        ]
        self.reference: list[Tensor] | None = None

    @property
    def examples(self) -> Sequence[Encoded]:
        """The first sequences, each with its prompt."""
        return self.first.examples

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index: int) -> Tensors:
        row = collate([self.first[index], self.second[index]], self.pad_id)
        row["aux_mask"][1] = False
        zeros = torch.zeros(row["input_ids"].shape)
        row["reference"] = zeros if self.reference is None else self.reference[index]
        return row


Sides = tuple[Sequence[Encoded], Sequence[Encoded], Sequence[float]]
"""The first and the second sequences of pairs, and their values; see `PairRows`."""

MakeSides = Callable[[Sequence[EncodedFeedback], int], Sides]
"""Makes pairs of examples; see `FeedbackObjective.sides`."""


def pair_rows(
    rows: Sequence[EncodedFeedback],
    config: FinetuneConfig,
    text: ModelText,
    span: SupervisedSpan,
    sides: MakeSides,
    packed: tuple[int, int] | None = None,
) -> PairRows:
    """Examples as rows of one pair each, or packed.

    span: the tokens of L1 in the first sequences. packed: see `PairRows`.
    """
    first, second, values = sides(rows, length_of(config.data, text.window))
    first, second = (with_start(list(side), text.start) for side in (first, second))
    return PairRows(first, second, values, span, text.tokenizer.end_id, packed)


def mean_losses(
    objective: Objective, model: Any, rows: TrainingRows, end_id: int, what: str, tell: Tell
) -> tuple[dict[str, float], Tensor]:
    """The means of an objective's scalars over rows, by name, and their divisors.

    what: the work, for `tell`.
    """
    counts = objective.count(_evaluation_batches(rows, end_id), model, model)
    total = torch.zeros(len(objective.names), dtype=torch.float64)
    for batch in batches_on(model, rows, end_id, what, tell):
        total += objective.losses(model, model, batch, counts, 0.0).cpu()
    weights = objective.weights(counts)
    return objective.means(total * weights, weights), counts


def batches_on(
    model: Any, rows: TrainingRows, end_id: int, what: str, tell: Tell
) -> Iterator[Tensors]:
    """Rows to evaluate, on the model's device. what: the work, for `tell`."""
    device = next(model.parameters()).device
    for number, batch in enumerate(_evaluation_batches(rows, end_id)):
        tell(what, number * EVALUATION_BATCH)
        yield {key: value.to(device) for key, value in batch.items()}


def _evaluation_batches(rows: TrainingRows, end_id: int) -> Loader:
    pad = partial(collate, pad_id=end_id)
    return loader(rows, ByLength(rows.lengths), EVALUATION_BATCH, pad)


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
    shapes = {name: [(2, length) for length in rows.lengths] for name, rows in sets.items()}
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
            with whole_file(path) as draft:
                save_file(flat, draft, metadata={"of": described})
    for name, rows in sets.items():
        sizes = [height * width for height, width in shapes[name]]
        parts = torch.split(flat[name], sizes)
        rows.reference = [p.view(s) for p, s in zip(parts, shapes[name], strict=True)]


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

        with cast, model.disable_adapter() if has_adapter(model) else nullcontext():
            logps = through_head(model, model, here, compute).cpu()
        for number in range(len(logps) // 2):
            index = order[len(by_index)]
            by_index[index] = logps[2 * number : 2 * number + 2, : rows.lengths[index]].clone()
        tell(len(by_index))
    return [by_index[index] for index in range(len(rows))]


def _read(path: Path, described: str) -> dict[str, Tensor] | None:
    """None when the file is missing, of another run or broken."""
    try:
        with safe_open(path, "pt") as file:
            if (file.metadata() or {}).get("of") != described:
                return None
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None


STYLES = {Span.TEMPLATE: "dim", Span.PROMPT: "cyan", Span.RESPONSE: "bold green"}
SHOWN = 400
"""Characters of a span beyond which its middle is left out."""

BAR = 14
"""Characters of the longest bar."""

ALIKE = 0.9
"""Fraction of common tokens from which two replies count as alike."""

Item = TypeVar("Item")


def short_middling_long(by_length: Sequence[Item]) -> list[Item]:
    """A short, a middle and a long row from rows sorted by length, without repetitions."""
    places = dict.fromkeys(int(share * len(by_length)) for share in (0.1, 0.5, 0.9))
    return [by_length[place] for place in places]


def legend(marked: bool) -> Text:
    """The meaning of the styles; see `masked`."""
    text = Text("template", STYLES[Span.TEMPLATE])
    text.append(" · ").append("prompt", STYLES[Span.PROMPT]).append(" · ")
    text.append("⟦response⟧" if marked else "response", STYLES[Span.RESPONSE])
    return text


def masked(example: Encoded, tokenizer: PieceTokenizer, marked: bool = False) -> Text:
    """An example as text, each span in its style; a long span is shown by its ends.

    marked: brackets around responses, for terminals without colours.
    """
    text = Text()
    start = 0
    for span, run in groupby(example.spans.tolist()):
        length = len(list(run))
        shown = printable(_decoded(example.ids[start : start + length].tolist(), tokenizer))
        start += length
        if len(shown) > SHOWN:
            shown = f"{shown[: SHOWN // 2]} […] {shown[-SHOWN // 2 :]}"
        if marked and span == Span.RESPONSE:
            shown = f"⟦{shown}⟧"
        text.append(shown, STYLES[Span(span)])
    return text


def _decoded(ids: list[int], tokenizer: PieceTokenizer) -> str:
    """Text of tokens, special ones by their names."""
    parts = []
    names = {tokenizer.end_id, *tokenizer.special.values()}
    for special, run in groupby(ids, key=names.__contains__):
        run_ids = list(run)
        named = map(tokenizer.piece, run_ids)
        parts.append("".join(named) if special else tokenizer.decode(run_ids))
    return "".join(parts)


def show_lengths(examples: Sequence[Encoded]) -> Iterator[RenderableType]:
    """The distributions of the lengths of examples, prompts and responses."""
    lengths = np.array([np.bincount(example.spans, minlength=len(Span)) for example in examples])
    shown = {
        "whole": lengths.sum(1),
        "prompt": lengths[:, Span.PROMPT],
        "response": lengths[:, Span.RESPONSE],
    }
    edges = [0, 8]  # doubling, to beyond the longest
    while edges[-1] <= int(shown["whole"].max()):
        edges.append(edges[-1] * 2)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("tokens", justify="right")
    for name in shown:
        table.add_column(name, min_width=BAR + 6)
    counts = {name: np.histogram(values, edges)[0] for name, values in shown.items()}
    for row, (low, high) in enumerate(pairwise(edges)):
        bars = [_bar(int(count[row]), int(count.max())) for count in counts.values()]
        table.add_row(f"{low}–{high - 1}", *bars)
    table.add_row(
        "mean",
        *(Text(f"{values.mean():,.0f}, at most {values.max():,}") for values in shown.values()),
    )
    yield table
    template = int(lengths[:, Span.TEMPLATE].sum())
    yield Text(f"an epoch: {int(lengths.sum()):,} tokens, of them {template:,} of the template")


def _bar(count: int, most: int) -> Text:
    return Text("█" * -(-BAR * count // max(1, most)) + (f" {count:,}" if count else ""))


def show_masks(
    examples: Sequence[Encoded], tokenizer: PieceTokenizer, marked: bool
) -> Iterator[RenderableType]:
    """A short, a middle and a long example, span by span; see `masked`."""
    yield legend(marked)
    for example in short_middling_long(sorted(examples, key=lambda row: len(row.ids))):
        yield Text(f"── {len(example.ids):,} tokens", "dim")
        yield masked(example, tokenizer, marked)


def show_pairs(
    rows: PairRows, titles: Sequence[tuple[str, str]], tokenizer: PieceTokenizer, marked: bool
) -> Iterator[RenderableType]:
    """A short, a middle and a long pair, side by side. titles: of the two sides of each pair."""
    yield legend(marked)
    sides = rows.first.examples, rows.second.examples
    lengths = [max(len(first.ids), len(second.ids)) for first, second in zip(*sides, strict=True)]
    for number in short_middling_long(np.argsort(lengths).tolist()):
        pair = [side[number] for side in sides]
        table = Table(show_edge=False, padding=(0, 1), header_style="dim")
        for title, example in zip(titles[number], pair, strict=True):
            table.add_column(f"{title} · {len(example.ids):,} tokens", ratio=1, overflow="fold")
        table.add_row(*(masked(side, tokenizer, marked) for side in pair))
        yield table


def reply_lengths(examples: Sequence[Encoded]) -> Any:
    """Tokens of each reply, an array."""
    return np.array([int((example.spans == Span.RESPONSE).sum()) for example in examples])


def lengths_line(name: str, lengths: Any) -> Text:
    """Lengths in words."""
    return Text(f"{name}: {lengths.mean():,.0f} tokens on average, at most {lengths.max():,}")


def lengths_document(lengths: Any) -> dict[str, float]:
    """The same for --json."""
    return {"mean": float(lengths.mean()), "most": int(lengths.max())}


def cut_line(data: RowSets) -> Text:
    """The number of rows that were cut to fit."""
    return Text(f"rows cut to fit: {data.report.truncated.total():,}")


def count_alike(rows: PairRows) -> int:
    """The number of pairs with nine tokens in ten in common."""
    return sum(map(_are_alike, rows.first.examples, rows.second.examples))


def _are_alike(first: Encoded, second: Encoded) -> bool:
    one, other = (reply.ids[reply.spans == Span.RESPONSE].tolist() for reply in (first, second))
    matcher: SequenceMatcher[int] = SequenceMatcher(None, one, other, autojunk=False)
    return (
        matcher.real_quick_ratio() >= ALIKE
        and matcher.quick_ratio() >= ALIKE
        and matcher.ratio() >= ALIKE
    )
