"""What is measured once on a machine, and kept: threads for a token, and the way of products."""

import pytest

from chatapp.engine.kernels import native_layers as module
from chatapp.engine.kernels.native import kernels
from chatapp.engine.kernels.native_layers import fewest, token_threads, torch_multiplies_faster


def test_fewer_threads_that_are_nearly_as_fast_are_enough():
    assert fewest({1: 1.05, 2: 1.0}) == 1
    assert fewest({1: 1.5, 2: 1.0}) == 2
    assert fewest({1: 4.0, 2: 2.0, 4: 1.05, 8: 1.0}) == 4
    assert fewest({1: 1.0, 2: 30.0}) == 1  # the others have no core


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The numbers of threads that were measured for; there, two are best."""
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    asked = []

    def seconds(most):
        asked.append(most)
        return {1: 2.0, 2: 1.0, 4: 0.99}

    monkeypatch.setattr(module, "_seconds_by_threads", seconds)
    monkeypatch.setattr(module, "seconds_of_others", lambda: 7.0)
    return asked


def choose(most):
    """As a process that starts now."""
    token_threads.cache_clear()
    try:
        return token_threads(most)
    finally:
        token_threads.cache_clear()


def test_the_number_is_measured_once_on_a_machine(measured):
    assert [choose(4), choose(4)] == [2, 2]
    assert measured == [4]
    assert choose(3) == 2  # with another number of threads, what is best may be another
    assert choose(4) == 2
    assert measured == [4, 3]


def test_what_is_measured_beside_other_programs_is_not_kept(measured, monkeypatch):
    looks = iter(range(100))
    monkeypatch.setattr(module, "seconds_of_others", lambda: 1000.0 * next(looks))
    assert [choose(4), choose(4)] == [2, 2]
    assert measured == [4, 4]


@pytest.mark.parametrize("content", ["", "[]", "7", '{"a": "b"}', "\ud800"])
def test_a_broken_file_is_measured_again(measured, tmp_path, content):
    path = tmp_path / "cache" / "kernels" / "measured.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content.encode(errors="surrogatepass"))
    assert choose(4) == 2
    assert choose(4) == 2
    assert len(measured) == 1


def test_without_a_place_for_the_file(measured, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.write_text("a file where the folder should be")
    monkeypatch.setenv("CHATAPP_HOME", str(home))
    assert [choose(4), choose(4)] == [2, 2]


@pytest.mark.parametrize("is_faster", [False, True])
def test_the_faster_way_of_products_is_measured_once(measured, monkeypatch, is_faster):
    asked = []

    def compare(threads):
        asked.append(threads)
        return is_faster

    monkeypatch.setattr(module, "_is_torch_faster", compare)
    answers = []
    for _ in range(2):
        torch_multiplies_faster.cache_clear()
        answers.append(torch_multiplies_faster(2))
    torch_multiplies_faster.cache_clear()
    assert answers == [is_faster, is_faster]
    assert asked == [2]
    assert choose(2) == 2  # its number is another one in the same file


@pytest.mark.skipif(kernels().library is None, reason="there is no C compiler here")
def test_every_number_is_measured():
    seconds = module._seconds_by_threads(3)
    assert list(seconds) == [1, 2, 3]
    assert all(0 < each < 60 for each in seconds.values())
