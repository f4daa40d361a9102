"""Encoded examples to rows of tensors, one or several examples each, and rows to batches: the order
of an epoch, the micro-batches of each process, padding.

Invariant: the order depends only on the seed and the epoch, and every row is used exactly once per
epoch. Whatever the arrangement, rows have exactly the tokens and labels of their examples.
Positions restart with each example, a first token is never a label, and padding has no labels and
is marked by its example id 0, never by a token's id.
"""

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Sampler

from finetune.config.objectives import SupervisedSpan
from finetune.data.encoding import Encoded, Span

Tensors = dict[str, Tensor]
"""A row, each key (T,) or (sequences, T); or a batch of rows, each key (sequences, T)."""

Collate = Callable[[list[Tensors]], Tensors]

MASKS = ("response_mask", "aux_mask")
"""The keys of the label masks."""


class TrainingRows(Protocol):
    """Training rows, each one example or several."""

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each row, or of the longest of its sequences."""
        ...

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Tensors: ...


class RowOrder(Protocol):
    """The order of the rows in an epoch."""

    def __iter__(self) -> Iterator[int]: ...
    def set_epoch(self, epoch: int) -> None: ...


class Windows(Dataset[Tensors]):
    """Packed windows of text, (windows, tokens), as rows: each token is a label, or may be chosen
    as one.
    """

    def __init__(self, ids: NDArray[np.int32]) -> None:
        self.ids = ids
        self.lengths = [ids.shape[1]] * len(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Tensors:
        ids = torch.from_numpy(self.ids[index].astype(np.int64))
        example = torch.ones_like(ids)
        return {"input_ids": ids, "example_ids": example} | dict.fromkeys(MASKS, example.bool())


class Shuffled:
    """A new order of as many rows in each epoch; with `seed` None always the same, as they are."""

    def __init__(self, rows: int, seed: int | None) -> None:
        self._rows, self._seed, self._epoch = rows, seed, 0

    def __iter__(self) -> Iterator[int]:
        if self._seed is None:
            return iter(range(self._rows))
        draw = torch.Generator().manual_seed(self._seed + self._epoch)
        return iter(torch.randperm(self._rows, generator=draw).tolist())

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch


class ByLength:
    """Longest first: the least padding, and a row that exceeds the memory fails at once."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._order = np.argsort(lengths, kind="stable")[::-1].tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def set_epoch(self, epoch: int) -> None: ...


class ProbeOrder:
    """One step of the longest rows, then a short, a middle and a long step of an order."""

    steps = 4

    def __init__(self, lengths: Sequence[int], order: RowOrder, step_rows: int) -> None:
        self._lengths = lengths
        self._order = order
        self._step_rows = step_rows

    def __iter__(self) -> Iterator[int]:
        rows = list(self._order)
        steps = self._steps(rows)
        steps.sort(key=lambda step: sum(self._lengths[row] for row in step))
        chosen = [steps[len(steps) * part // 6] for part in (1, 3, 5)]
        longest = list(ByLength(self._lengths))[: self._step_rows]
        probed = [row for step in (longest, *chosen) for row in step]
        # As many rows as there are: a short set may repeat one and omit another.
        return iter((probed + rows)[: len(rows)])

    def tokens(self) -> list[int]:
        """The number of tokens of each step, in this order."""
        return [sum(self._lengths[row] for row in step) for step in self._steps(list(self))]

    def _steps(self, rows: list[int]) -> list[list[int]]:
        size = self._step_rows
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def set_epoch(self, epoch: int) -> None:
        self._order.set_epoch(epoch)


class BucketSampler(Sampler[int]):
    """Shuffled, with rows of similar length next to each other.

    Rows are shuffled, sorted by length within groups of about fifty batches, and the batches
    shuffled again, so that there is little padding and lengths come in no order.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self._lengths = np.asarray(lengths)
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of another epoch, from 0."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        draw = np.random.default_rng([self._seed, self._epoch])
        order = draw.permutation(len(self._lengths))
        stretch = 50 * self._batch_size
        batches: list[NDArray[np.int64]] = []
        for start in range(0, len(order), stretch):
            part = order[start : start + stretch]
            part = part[np.argsort(-self._lengths[part], kind="stable")]
            batches += np.split(part, range(self._batch_size, len(part), self._batch_size))
        # The order is cut into batches again: a short one must stay the last.
        last = [batches.pop()] if batches and len(batches[-1]) < self._batch_size else []
        shuffled = [batches[i] for i in draw.permutation(len(batches))]
        return iter(np.concatenate([*shuffled, *last, np.empty(0, np.int64)]).tolist())


class MicroBatches(Sampler[list[int]]):
    """The micro-batches of one process: `size` rows of `order` at a time, dealt in turn.

    All processes get the same number. A process without rows in the last turn gets -1, which is row
    0 without labels.
    """

    def __init__(self, order: RowOrder, rows: int, size: int, process: int, processes: int) -> None:
        self.order, self.rows, self.size = order, rows, size
        self.process, self.processes, self.skipped = process, processes, 0

    def __len__(self) -> int:
        return micro_batches(self.rows, self.size, self.processes)

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.order)
        for turn in range(self.skipped, len(self)):
            start = (turn * self.processes + self.process) * self.size
            yield order[start : start + self.size] or [-1]

    def set_epoch(self, epoch: int, skipped: int) -> None:
        """Go to an epoch, and leave out its first micro-batches."""
        self.order.set_epoch(epoch)
        self.skipped = skipped


def micro_batches(rows: int, size: int, processes: int) -> int:
    """The number of micro-batches of `size` rows of each process in an epoch."""
    return math.ceil(rows / (size * processes))


class WithUnlabelled(Dataset[Tensors]):
    """Rows, where index -1 - i is row i without labels."""

    def __init__(self, rows: TrainingRows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensors:
        if index >= 0:
            return self.rows[index]
        row = self.rows[-1 - index]
        return {**row, **{key: torch.zeros_like(row[key]) for key in MASKS}}


class Loader(DataLoader[Tensors]):
    """A DataLoader that begins within an epoch."""

    def set_epoch(self, epoch: int, skipped: int) -> None:
        """See `MicroBatches`."""
        self.batch_sampler.set_epoch(epoch, skipped)  # type: ignore[union-attr]


def loader(
    rows: Any, order: RowOrder, size: int, collate: Collate, process: int = 0, processes: int = 1
) -> Loader:
    """The micro-batches of one process as a DataLoader."""
    sampler = MicroBatches(order, len(rows), size, process, processes)
    return Loader(rows, batch_sampler=sampler, collate_fn=collate)


def collate(rows: Sequence[Tensors], pad_id: int) -> Tensors:
    """Pad rows at the right to the longest and stack them: each key (sequences, T).

    A row is one sequence, or several; a key without tokens has one number per row: (rows,). Padding
    has the token `pad_id`, and 0 or False under every other key.
    """
    width = max(row["input_ids"].shape[-1] for row in rows)

    def padded(key: str, value: Tensor) -> Tensor:
        fill = pad_id if key == "input_ids" else 0
        sequences = value if value.ndim == 2 else value[None]
        return functional.pad(sequences, (0, width - value.shape[-1]), value=fill)

    return {
        key: torch.cat([padded(key, row[key]) for row in rows])
        if first.ndim
        else torch.stack([row[key] for row in rows])
        for key, first in rows[0].items()
    }


ROW_KEYS = ("input_ids", "position_ids", "example_ids", "response_mask", "aux_mask")


def response_labels(example: Encoded) -> NDArray[np.bool_]:
    """The labels of L2: the responses, but never a first token."""
    return _labels(example.spans == Span.RESPONSE)


def aux_labels(example: Encoded, span: SupervisedSpan) -> NDArray[np.bool_]:
    """The labels of L1."""
    if span == "full":
        return _labels(np.ones(len(example.ids), np.bool_))
    if span == "response":
        return response_labels(example)
    if span == "prompt":
        return _labels(example.spans != Span.RESPONSE)
    return _labels(example.spans == Span.PROMPT)


def _labels(chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    labels = chosen.copy()
    labels[:1] = False
    return labels


class Rows(Dataset[Tensors]):
    """Rows of one or more examples each, as tensors without a batch dimension.

    A row is a dict of `ROW_KEYS`, each (T,): ids and positions int64, example ids 1, 2, …
    int64, masks bool. columns: further keys, each with a number of each example, (examples,), which
    all its tokens have in a row. lengths: T of each row.
    """

    def __init__(
        self,
        examples: Sequence[Encoded],
        aux_span: SupervisedSpan,
        bins: Sequence[Sequence[int]] | None = None,
        columns: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.examples, self.columns = examples, columns or {}
        self.aux_span = aux_span
        self.bins = [[index] for index in range(len(examples))] if bins is None else bins
        self.lengths = [sum(len(examples[i].ids) for i in members) for members in self.bins]

    @classmethod
    def packed(
        cls, examples: Sequence[Encoded], aux_span: SupervisedSpan, length: int, seed: int
    ) -> "Rows":
        """Several examples per row; length: see `pack`."""
        return cls(
            examples, aux_span, pack([len(example.ids) for example in examples], length, seed)
        )

    def __len__(self) -> int:
        return len(self.bins)

    def __getitem__(self, index: int) -> Tensors:
        members = [self.examples[i] for i in self.bins[index]]
        lengths = [len(member.ids) for member in members]
        columns = (
            np.concatenate([member.ids for member in members]).astype(np.int64),
            np.concatenate([np.arange(length) for length in lengths]),
            np.repeat(np.arange(1, len(members) + 1), lengths),
            np.concatenate([response_labels(member) for member in members]),
            np.concatenate([aux_labels(member, self.aux_span) for member in members]),
        )
        row = dict(zip(ROW_KEYS, map(torch.from_numpy, columns), strict=True))
        of_token = torch.tensor(self.bins[index])[row["example_ids"] - 1]
        return row | {key: values[of_token] for key, values in self.columns.items()}


def pack(lengths: Sequence[int], length: int, seed: int) -> list[list[int]]:
    """Pack indices into bins of at most `length` tokens, or those of the longest example if it has
    more: best fit, longest first.

    Examples of one length are taken in a random order by the seed, so that neighbours in the data
    do not end up in one bin.
    """
    length = max([length, *lengths])
    shuffled = np.random.default_rng(seed).permutation(len(lengths))
    order = shuffled[np.argsort(-np.asarray(lengths)[shuffled], kind="stable")]
    bins: list[list[int]] = []
    bins_by_space: defaultdict[int, list[int]] = defaultdict(list)  # by the number of free tokens
    spaces: list[int] = []  # the keys of bins_by_space with a bin, sorted
    for index in order.tolist():
        need = lengths[index]
        tightest = bisect_left(spaces, need)
        if tightest == len(spaces):
            space, chosen = length, len(bins)
            bins.append([])
        else:
            space = spaces[tightest]
            chosen = bins_by_space[space].pop()
            if not bins_by_space[space]:
                del spaces[tightest]
        bins[chosen].append(index)
        if space > need:
            if not bins_by_space[space - need]:
                insort(spaces, space - need)
            bins_by_space[space - need].append(chosen)
    return bins
