"""Rows and batches: the same examples with the same labels, however they are arranged."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from finetune.data.batches import BucketSampler, Rows, aux_labels, collate, pack, response_labels
from finetune.data.encoding import Encoded, Span

T, P, R = Span.TEMPLATE, Span.PROMPT, Span.RESPONSE


def encoded(*spans, first=10):
    ids = np.arange(first, first + len(spans), dtype=np.int32)
    return Encoded(ids, np.array(spans, np.uint8), f"{first:016x}")


ONE = encoded(T, P, T, R, R, first=10)
TWO = encoded(R, R, R, first=20)


def test_a_packed_row():
    rows = Rows([ONE, TWO], "prompt", [[1, 0]])
    (row,) = [rows[0]]
    assert {key: value.tolist() for key, value in row.items()} == {
        "input_ids": [20, 21, 22, 10, 11, 12, 13, 14],
        "position_ids": [0, 1, 2, 0, 1, 2, 3, 4],
        "example_ids": [1, 1, 1, 2, 2, 2, 2, 2],
        "response_mask": [False, True, True, False, False, False, True, True],
        "aux_mask": [False, False, False, False, True, True, False, False],
    }
    assert [value.dtype for value in row.values()] == [torch.int64] * 3 + [torch.bool] * 2
    assert rows.lengths == [8]


def test_padding_is_told_by_length():
    rows = Rows([ONE, TWO], "prompt-without-template")
    batch = collate([rows[0], rows[1]], pad_id=20)
    assert batch["input_ids"].tolist() == [[10, 11, 12, 13, 14], [20, 21, 22, 20, 20]]
    assert batch["example_ids"].tolist() == [[1] * 5, [1, 1, 1, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 0]]
    assert batch["response_mask"].tolist() == [
        [False, False, False, True, True],
        [False, True, True, False, False],
    ]
    assert batch["aux_mask"].tolist() == [[False, True, False, False, False], [False] * 5]


@pytest.mark.parametrize(
    ("span", "labels"),
    [
        ("prompt", [False, True, True, False, False]),
        ("prompt-without-template", [False, True, False, False, False]),
        ("full", [False, True, True, True, True]),
    ],
)
def test_the_labels_of_the_auxiliary_loss(span, labels):
    assert aux_labels(ONE, span).tolist() == labels
    assert response_labels(ONE).tolist() == [False, False, False, True, True]


LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=40)


def examples_of(lengths):
    """Tokens and spans that tell which example, and where in it, a token is."""
    draw = np.random.default_rng(len(lengths))
    return [
        Encoded(
            np.arange(length, dtype=np.int32) + 100 * number,
            draw.integers(0, 3, length).astype(np.uint8),
            f"{number:016x}",
        )
        for number, length in enumerate(lengths)
    ]


def carried(batches):
    """Every token with its position and labels, padding aside."""
    tokens = Counter()
    for batch in batches:
        real = batch["example_ids"] > 0
        for key in ("response_mask", "aux_mask", "position_ids"):
            assert not batch[key][~real].any()
        columns = [batch[key][real].tolist() for key in batch if key != "example_ids"]
        tokens.update(zip(*columns, strict=True))
    return tokens


def batches(rows, size, sampler=None):
    loader = DataLoader(rows, size, sampler=sampler, collate_fn=partial(collate, pad_id=7))
    return list(loader)


@given(LENGTHS, st.integers(1, 6), st.integers(0, 9), st.sampled_from(["prompt", "full"]))
def test_padding_packing_and_bucketing_carry_the_same(lengths, size, seed, span):
    examples = examples_of(lengths)
    rows = Rows(examples, span)
    padded = carried(batches(rows, size))
    assert sum(padded.values()) == sum(lengths)
    assert set(padded.values()) == {1}
    packed = Rows.packed(examples, span, 20, seed)
    assert carried(batches(packed, size)) == padded
    bucketed = BucketSampler(rows.lengths, size, seed)
    assert carried(batches(rows, size, bucketed)) == padded


@given(LENGTHS, st.integers(20, 60), st.integers(0, 9))
def test_examples_of_a_row_are_told_apart(lengths, length, seed):
    rows = Rows.packed(examples_of(lengths), "full", length, seed)
    for index in range(len(rows)):
        row = rows[index]
        assert len(row["input_ids"]) == rows.lengths[index] <= length
        starts = row["position_ids"] == 0
        assert (starts.cumsum(0) == row["example_ids"]).all()
        # A token belongs to the example its number says, and stands where it stood.
        assert (row["input_ids"] % 100 == row["position_ids"]).all()
        owners = (row["input_ids"] // 100).tolist()
        assert len(set(zip(owners, row["example_ids"].tolist(), strict=True))) == len(set(owners))


@given(LENGTHS, st.integers(20, 60), st.integers(0, 9))
def test_packing_wastes_little_and_repeats_itself(lengths, length, seed):
    bins = pack(lengths, length, seed)
    assert sorted(index for members in bins for index in members) == list(range(len(lengths)))
    loads = [sum(lengths[index] for index in members) for members in bins]
    assert max(loads) <= length
    # No two rows could have been one.
    assert all(a + b > length for i, a in enumerate(loads) for b in loads[:i])
    assert bins == pack(lengths, length, seed)


def test_packing_many_is_tight():
    lengths = np.random.default_rng(0).integers(10, 400, 5000).tolist()
    bins = pack(lengths, 1024, 0)
    assert sum(lengths) / (len(bins) * 1024) > 0.99
    assert pack(lengths, 1024, 1) != bins


def test_packing_nothing_and_too_much():
    assert pack([], 10, 0) == []
    assert pack([3, 11], 10, 0) == [[1], [0]]
