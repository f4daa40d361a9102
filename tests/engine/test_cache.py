"""The cache keeps the longest common prefix and never the last token that was asked for."""

import pytest
import torch

from chatapp.engine.cache import KeyValueCache, common_prefix


@pytest.mark.parametrize(
    ("a", "b", "shared"),
    [
        ([], [], 0),
        ([1], [], 0),
        ([1, 2], [1, 2], 2),
        ([1, 2, 3], [1, 2], 2),
        ([1, 2, 3], [1, 9, 3], 1),
    ],
)
def test_common_prefix(a: list[int], b: list[int], shared: int) -> None:
    assert common_prefix(a, b) == common_prefix(b, a) == shared


@pytest.mark.parametrize(
    ("ids", "kept"),
    [([5, 6, 7, 8], 3), ([5, 6, 7], 2), ([5, 6], 1), ([5], 0), ([5, 9, 7], 1), ([4, 5, 6, 7], 0)],
)
def test_rewind(ids: list[int], kept: int) -> None:
    cache = KeyValueCache(1, 1, 8, 1)
    cache.commit([5, 6, 7])
    assert cache.rewind(ids) == kept == len(cache)
    assert cache.ids == [5, 6, 7][:kept]


def test_new_positions_follow_the_known_ones() -> None:
    cache = KeyValueCache(2, 3, 8, 4)
    first, second = torch.randn(1, 3, 2, 4), torch.randn(1, 3, 1, 4)
    cache.extend(1, first, -first)
    cache.commit([1, 2])
    keys, values = cache.extend(1, second, -second)
    assert torch.equal(keys, torch.cat([first, second], dim=2))
    assert torch.equal(values, -keys)
    assert len(cache) == 2
    cache.clear()
    assert len(cache) == 0
