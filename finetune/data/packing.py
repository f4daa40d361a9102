"""Encoded examples to rows and batches: packing, padding, and the order of an epoch.

The one invariant: whatever the arrangement, a batch carries exactly the tokens and labels of
its examples. Positions restart with each example, a first token is never a label, and
padding is told by length (example id 0), never by a token's id.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from finetune.config import AuxSpan
from finetune.data.encoding import Encoded, Span

BATCH_KEYS = ("input_ids", "position_ids", "example_ids", "response_mask", "aux_mask")


def response_labels(example: Encoded) -> NDArray[np.bool_]:
    """Which tokens are labels of L2: the responses, but never a first token."""
    return _labels(example.spans == Span.RESPONSE)


def aux_labels(example: Encoded, span: AuxSpan) -> NDArray[np.bool_]:
    """Which tokens are labels of L1."""
    if span == "full":
        return _labels(np.ones(len(example.ids), np.bool_))
    if span == "prompt":
        return _labels(example.spans != Span.RESPONSE)
    return _labels(example.spans == Span.PROMPT)


def _labels(chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    labels = chosen.copy()
    labels[:1] = False
    return labels


class Rows(Dataset[dict[str, Tensor]]):
    """Rows of one or more examples each, as tensors without a batch dimension.

    A row is a dict of `BATCH_KEYS`, each (T,): ids and positions int64, example ids 1, 2, …
    int64, masks bool. lengths: T of each row.
    """

    def __init__(
        self,
        examples: Sequence[Encoded],
        aux_span: AuxSpan,
        bins: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.examples = examples
        self.aux_span = aux_span
        self.bins = [[index] for index in range(len(examples))] if bins is None else bins
        self.lengths = [sum(len(examples[i].ids) for i in members) for members in self.bins]

    @classmethod
    def packed(
        cls, examples: Sequence[Encoded], aux_span: AuxSpan, length: int, seed: int
    ) -> "Rows":
        """Several examples a row, at most `length` tokens together."""
        return cls(examples, aux_span, pack([len(each.ids) for each in examples], length, seed))

    def __len__(self) -> int:
        return len(self.bins)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        members = [self.examples[i] for i in self.bins[index]]
        lengths = [len(each.ids) for each in members]
        columns = (
            np.concatenate([each.ids for each in members]).astype(np.int64),
            np.concatenate([np.arange(length) for length in lengths]),
            np.repeat(np.arange(1, len(members) + 1), lengths),
            np.concatenate([response_labels(each) for each in members]),
            np.concatenate([aux_labels(each, self.aux_span) for each in members]),
        )
        return dict(zip(BATCH_KEYS, map(torch.from_numpy, columns), strict=True))


def collate(rows: Sequence[dict[str, Tensor]], pad_id: int) -> dict[str, Tensor]:
    """Rows padded at the right to the longest and stacked: each key (B, T).

    Padding has example id 0, position 0, the token `pad_id` and no label.
    """
    batch = {}
    for key in BATCH_KEYS:
        value = pad_id if key == "input_ids" else 0
        columns = [row[key] for row in rows]
        batch[key] = torch.nn.utils.rnn.pad_sequence(columns, True, value)
    return batch


def pack(lengths: Sequence[int], length: int, seed: int) -> list[list[int]]:
    """Bins of indices, each at most `length` tokens: best fit, longest first.

    Examples of one length are taken in an order drawn by the seed, so that neighbours in
    the data do not end up in one bin. Raises ValueError when one alone does not fit.
    """
    if lengths and max(lengths) > length:
        raise ValueError(f"an example of {max(lengths)} tokens does not fit a row of {length}")
    shuffled = np.random.default_rng(seed).permutation(len(lengths))
    order = shuffled[np.argsort(-np.asarray(lengths)[shuffled], kind="stable")]
    bins: list[list[int]] = []
    open_bins: defaultdict[int, list[int]] = defaultdict(list)  # by the room left in them
    rooms: list[int] = []  # those in use, sorted
    for index in order.tolist():
        need = lengths[index]
        place = bisect_left(rooms, need)
        if place == len(rooms):
            room, chosen = length, len(bins)
            bins.append([])
        else:
            room = rooms[place]
            chosen = open_bins[room].pop()
            if not open_bins[room]:
                del rooms[place]
        bins[chosen].append(index)
        if room > need:
            if not open_bins[room - need]:
                insort(rooms, room - need)
            open_bins[room - need].append(chosen)
    return bins


class BucketSampler(Sampler[int]):
    """The order of rows in an epoch: shuffled, with rows of like length beside each other.

    The order depends on the seed and the epoch alone, so an interrupted epoch can be gone on
    with. Rows are shuffled, sorted by length within stretches of some fifty batches, and the
    batches shuffled again, so that little is padded and lengths come in no order.
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
        # Batches are cut again from the order given out: a short one must stay the last.
        last = [batches.pop()] if batches and len(batches[-1]) < self._batch_size else []
        shuffled = [batches[i] for i in draw.permutation(len(batches))]
        return iter(np.concatenate([*shuffled, *last, np.empty(0, np.int64)]).tolist())
