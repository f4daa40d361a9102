"""Encoded examples to rows of tensors, one or several examples per row.

Invariant: whatever the arrangement, rows have exactly the tokens and labels of their examples.
Positions restart with each example, a first token is never a label, and padding is marked by its
example id 0, never by a token's id.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from finetune.config.objectives import SupervisedSpan
from finetune.data.batches import Tensors
from finetune.data.encoding import Encoded, Span

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
        """Several examples per row, at most `length` tokens together."""
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
    """Pack indices into bins of at most `length` tokens: best fit, longest first.

    Examples of one length are taken in a random order by the seed, so that neighbours in the data
    do not end up in one bin. Raises ValueError when one alone does not fit.
    """
    if lengths and max(lengths) > length:
        raise ValueError(f"an example of {max(lengths)} tokens does not fit a row of {length}")
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
