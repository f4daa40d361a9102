"""The cache keeps the longest common prefix and never the last token that was asked for."""

import pytest
import torch

from chatapp.engine.cache.key_values import CachePool, KeyValueCache, common_prefix


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
def test_common_prefix(a, b, shared):
    assert common_prefix(a, b) == common_prefix(b, a) == shared


@pytest.mark.parametrize(
    ("ids", "kept"),
    [([5, 6, 7, 8], 3), ([5, 6, 7], 2), ([5, 6], 1), ([5], 0), ([5, 9, 7], 1), ([4, 5, 6, 7], 0)],
)
def test_rewind(ids, kept):
    cache = KeyValueCache(1, 1, 8, 1)
    cache.commit([5, 6, 7])
    assert cache.rewind(ids) == kept == len(cache)
    assert cache.ids == [5, 6, 7][:kept]


def test_new_positions_follow_the_known_ones():
    cache = KeyValueCache(2, 3, 8, 4)
    first, second = torch.randn(1, 3, 2, 4), torch.randn(1, 3, 1, 4)
    cache.extend(1, torch.stack([first, -first]))
    cache.commit([1, 2])
    keys, values = cache.extend(1, torch.stack([second, -second]))
    assert torch.equal(keys, torch.cat([first, second], dim=2))
    assert torch.equal(values, -keys)
    assert len(cache) == 2
    cache.clear()
    assert len(cache) == 0


def test_a_long_window_is_reserved_as_it_fills(monkeypatch):
    monkeypatch.setattr("chatapp.engine.cache.key_values._RESERVED_AT_FIRST", 4)
    cache, whole = KeyValueCache(2, 3, 40, 5), torch.randn(2, 1, 3, 33, 5)
    start = 0
    for size in (3, 1, 2, 20, 7):
        for layer in (0, 1):
            new = whole[..., start : start + size, :] * (layer + 1)
            keys, values = cache.extend(layer, new)
            assert torch.equal(keys, whole[0, ..., : start + size, :] * (layer + 1))
            assert torch.equal(values, whole[1, ..., : start + size, :] * (layer + 1))
        start += size
        cache.commit(range(start - size, start))
        assert start <= cache.layers[0].shape[3] <= 40
        assert cache.bytes == 2 * 2 * 3 * start * 5 * 4
    other = KeyValueCache(2, 3, 40, 5)
    other.copy(cache, 30)
    assert torch.equal(other.layers[1][..., :30, :], 2 * whole[..., :30, :])
    with pytest.raises(RuntimeError):
        cache.extend(0, whole[..., :8, :])


def pool(limit):
    """Of caches with 8 bytes a position."""
    return CachePool(lambda: KeyValueCache(1, 1, 200, 1), limit)


def read(caches, ids):
    """Take a cache and compute what it lacks; returns how much it had."""
    cache, reused = caches.take(ids)
    assert cache.ids == ids[:reused]
    new = torch.tensor(ids[reused:], dtype=torch.float32).reshape(1, 1, -1, 1)
    keys, values = cache.extend(0, torch.stack([new, -new]))
    cache.commit(ids[reused:])
    assert keys.flatten().tolist() == ids
    assert values.flatten().tolist() == [-id for id in ids]
    return reused


def text(name, size=100):
    """A text of its own after ten tokens that all share."""
    return [*range(10), *range(1000 * name, 1000 * name + size - 10)]


def test_going_back_to_a_text_computes_its_last_token_alone():
    caches = pool(10**6)
    assert [read(caches, text(n)) for n in (1, 2, 3)] == [0, 10, 10]
    assert [read(caches, text(n)) for n in (1, 3, 2, 2)] == [99] * 4


def test_the_text_unused_for_longest_makes_room():
    caches = pool(3 * 100 * 8)
    for n in (1, 2, 3, 1, 4):
        read(caches, text(n))
    assert [read(caches, text(n)) for n in (1, 3, 4)] == [99] * 3
    assert read(caches, text(2)) == 10
    assert [read(caches, text(n)) for n in (4, 2)] == [99] * 2


@pytest.mark.parametrize("limit", [0, 800])
def test_a_text_larger_than_the_bound_still_has_a_cache(limit):
    caches = pool(limit)
    for n in (1, 2, 1):
        read(caches, text(n, 150))
        assert read(caches, text(n, 150)) == 149


def test_a_text_goes_on_and_branches_in_its_own_cache():
    caches = pool(10**6)
    read(caches, text(1, 100))
    assert read(caches, text(1, 140)) == 100
    branch = [*text(1, 120), 7, 7]
    assert read(caches, branch) == 120
    # It was cut back, not copied.
    assert read(caches, text(1, 140)) == 120


def test_next_to_nothing_is_not_kept():
    caches = pool(10**6)
    first, _ = caches.take([1, 2, 3])
    read(caches, [1, 2, 3])
    assert caches.take([4, 5, 6])[0] is first


def test_many_short_texts_do_not_take_a_cache_each():
    caches = pool(10**9)
    found = {id(caches.take(text(n))[0]) for n in range(40) if read(caches, text(n)) >= 0}
    assert len(found) <= 8


def test_forgetting():
    caches = pool(10**6)
    read(caches, text(1))
    caches.clear()
    assert read(caches, text(1)) == 0


def test_an_empty_cache_is_used_again_and_none_is_added_beyond_the_bound():
    made = []

    def new():
        made.append(KeyValueCache(1, 1, 200, 1))
        return made[-1]

    caches = CachePool(new, 10**9)
    for n in range(8):
        read(caches, [*range(1000 * n, 1000 * n + 100)])
    assert len(made) == 8
    made[0].clear()  # as after a computation that failed
    for n in range(8, 16):
        read(caches, [*range(1000 * n, 1000 * n + 100)])
    assert len(made) == 8
