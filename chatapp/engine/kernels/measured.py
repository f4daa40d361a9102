"""What is fastest on this machine, measured once and stored: threads for a token, and the products
of a prompt.

A token reads every matrix once, so memory limits its speed: if one thread reads nearly as fast
as several, more threads only take cores from other programs. Products of many rows are limited by
computing: torch's BLAS has, on some processors, twice the speed of the kernels, and on others half.

Invariant: what is measured while other programs run is used, but not stored.
"""

import ctypes
import functools
import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress

import torch
from torch.nn import functional as F

from chatapp.common.paths import cache_dir
from chatapp.common.userfiles import whole_file
from chatapp.engine.kernels import native
from chatapp.engine.kernels.threads import seconds_of_others

_COLUMNS, _OUTPUTS = 1024, 2**16
"""The shape of an int8 matrix that is larger than any processor's cache."""

_ENOUGH = 1.1
"""The fewest threads are chosen whose time is at most this factor times the best time."""

_MANY_ROWS, _WIDTH = 256, 768
"""Of the product that torch and the kernels are compared at."""

_ROUNDS = 3
_QUIET = 0.2
"""Of a core, what other programs may compute meanwhile."""


@functools.cache
def token_threads(most: int) -> int:
    """How many of at most `most` threads compute a token, or a few, soonest."""
    return _kept(f"{most}", lambda: fewest(_seconds_by_threads(most)), most)


@functools.cache
def torch_multiplies_faster(threads: int) -> bool:
    """Whether torch is faster than the kernels at a product of many rows in float32."""
    return _kept(f"{threads}, torch", lambda: int(_is_torch_faster(threads)), 1, least=0) == 1


def _kept(what: str, measure: Callable[[], int], most: int, least: int = 1) -> int:
    """The number stored for this machine, from `least` to `most`; else it is measured."""
    path = cache_dir() / "kernels" / "measured.json"
    key = f"{platform.node()}, {os.cpu_count()} cores, {native.kernels().level}, {what}"
    kept: dict[str, int] = {}
    with suppress(OSError, TypeError, ValueError):
        kept = dict(json.loads(path.read_text(encoding="utf-8")))
    stored = kept.get(key)
    if isinstance(stored, int) and least <= stored <= most:
        return stored
    began, before = time.monotonic(), seconds_of_others()
    measured = measure()
    after, lasted = seconds_of_others(), time.monotonic() - began
    if before is not None and after is not None and after - before <= _QUIET * lasted:
        with suppress(OSError), whole_file(path) as draft:
            draft.write_text(json.dumps({**kept, key: measured}), encoding="utf-8")
    return measured


def fewest(seconds: dict[int, float]) -> int:
    """The least number of threads whose time is nearly the best."""
    return min(n for n, spent in seconds.items() if spent <= _ENOUGH * min(seconds.values()))


def _seconds_by_threads(most: int) -> dict[int, float]:
    """The seconds of a product with one row, by the number of threads: 1, 2, 4 …, and `most`."""
    library = native.kernels().library
    assert library is not None
    tiles = torch.ones(_OUTPUTS * _COLUMNS, dtype=torch.int8)
    scale, x, y = torch.ones(_OUTPUTS), torch.ones(_COLUMNS), torch.empty(_OUTPUTS)
    layer = native.Linear(native.INT8, _COLUMNS, _OUTPUTS, tiles.data_ptr(), scale.data_ptr(), None)
    of = ctypes.byref(layer)
    room = torch.empty(library.linear_room(of, 1), dtype=torch.uint8)
    counts = [*(2**n for n in range(most.bit_length()) if 2**n < most), most]
    seconds = dict.fromkeys(counts, float("inf"))
    for _ in range(_ROUNDS):
        for count in counts:
            library.set_threads(count)
            started = time.perf_counter()
            library.apply_linear(of, x.data_ptr(), y.data_ptr(), 1, room.data_ptr())
            seconds[count] = min(seconds[count], time.perf_counter() - started)
    return seconds


@torch.inference_mode()
def _is_torch_faster(threads: int) -> bool:
    library = native.kernels().library
    assert library is not None
    weight, x = torch.ones(4 * _WIDTH, _WIDTH), torch.ones(_MANY_ROWS, _WIDTH)
    y = torch.empty(_MANY_ROWS, len(weight))
    layer = native.Linear(native.FLOAT32, _WIDTH, len(weight), weight.data_ptr(), None, None)
    library.set_threads(threads)
    best = [float("inf")] * 2
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        library.apply_linear(ctypes.byref(layer), x.data_ptr(), y.data_ptr(), _MANY_ROWS, None)
        between = time.perf_counter()
        F.linear(x, weight)
        spent = between - started, time.perf_counter() - between
        best = [min(pair) for pair in zip(best, spent, strict=True)]
    return best[1] < best[0]
