"""The order of an epoch and the micro-batches of each process: every row once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.data.batches import BucketSampler, ByLength, MicroBatches, ProbeOrder

LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=40)


@given(LENGTHS, st.integers(1, 6), st.integers(0, 9), st.integers(0, 3))
def test_the_order_of_an_epoch(lengths, size, seed, epoch):
    def order(epoch):
        sampler = BucketSampler(lengths, size, seed)
        sampler.set_epoch(epoch)
        assert len(sampler) == len(lengths)
        return list(sampler)

    assert order(epoch) == order(epoch)
    assert sorted(order(epoch)) == list(range(len(lengths)))


def test_epochs_and_seeds_differ_and_batches_are_alike_in_length():
    lengths = np.random.default_rng(0).integers(1, 500, 2000).tolist()
    sampler = BucketSampler(lengths, 8, 0)
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert list(BucketSampler(lengths, 8, 1)) != first

    def padding(order):
        groups = [[lengths[i] for i in order[n : n + 8]] for n in range(0, len(order), 8)]
        return sum(max(group) * len(group) - sum(group) for group in groups)

    shuffled = np.random.default_rng(0).permutation(2000).tolist()
    assert padding(first) < padding(shuffled) / 10
    # The lengths come in no order: neither half of the epoch is the longer.
    halves = [sum(lengths[i] for i in first[:1000]), sum(lengths[i] for i in first[1000:])]
    assert max(halves) < 1.15 * min(halves)


def test_one_a_batch_is_a_plain_shuffle():
    lengths = list(range(1, 200))
    order = list(BucketSampler(lengths, 1, 0))
    assert order != sorted(order)
    assert sorted(order) == list(range(199))


def test_every_row_is_dealt_out_once():
    order = ByLength([3, 1, 2, 5, 4])
    alone = [row for batch in MicroBatches(order, 5, 2, 0, 1) for row in batch]
    assert alone == [3, 4, 0, 2, 1]
    dealt = [list(MicroBatches(order, 5, 1, process, 2)) for process in range(2)]
    assert [len(batches) for batches in dealt] == [3, 3]
    assert dealt[1][-1] == [-1]
    assert sorted(row for batches in dealt for batch in batches for row in batch) == [
        -1, 0, 1, 2, 3, 4,
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_probed_steps_are_as_long_as_those_of_an_epoch(seed):
    lengths = np.random.default_rng(seed).lognormal(4, 0.8, 5000).astype(int) + 4
    probed = list(ProbeOrder(lengths, BucketSampler(lengths, 32, seed), 32))
    assert len(probed) == len(lengths)
    longest, *timed = (lengths[probed[32 * n : 32 * (n + 1)]].sum() for n in range(4))
    assert longest == np.sort(lengths)[-32:].sum()
    assert np.mean(timed) == pytest.approx(lengths.mean() * 32, rel=0.2)


def test_few_rows_are_probed_too():
    assert sorted(ProbeOrder([3, 1, 2], ByLength([3, 1, 2]), 8)) == [0, 1, 2]
