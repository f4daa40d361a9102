"""How many threads compute a token, measured once per machine and stored.

A token reads every matrix once, so memory limits its speed: if one thread reads nearly as fast
as several, more threads only take cores from other programs.

Invariant: what is measured while other programs run is used, but not stored.
"""

import ctypes
import functools
import json
import os
import platform
import time
from contextlib import suppress

import torch

from chatapp.common.paths import cache_dir
from chatapp.common.userfiles import whole_file
from chatapp.engine.kernels import native
from chatapp.engine.kernels.threads import seconds_of_others

_COLUMNS, _OUTPUTS = 1024, 2**16
"""The shape of an int8 matrix that is larger than any processor's cache."""

_ENOUGH = 1.1
"""The fewest threads are chosen whose time is at most this factor times the best time."""

_ROUNDS = 3
_QUIET = 0.2
"""Of a core, what other programs may compute meanwhile."""


@functools.cache
def token_threads(most: int) -> int:
    """How many of at most `most` threads compute a token, or a few, soonest."""
    path = cache_dir() / "kernels" / "threads.json"
    key = f"{platform.node()}, {os.cpu_count()} cores, {native.kernels().level}, {most}"
    kept: dict[str, int] = {}
    with suppress(OSError, TypeError, ValueError):
        kept = dict(json.loads(path.read_text(encoding="utf-8")))
    chosen = kept.get(key)
    if isinstance(chosen, int) and 1 <= chosen <= most:
        return chosen
    began, before = time.monotonic(), seconds_of_others()
    chosen = fewest(_seconds_by_threads(most))
    after, lasted = seconds_of_others(), time.monotonic() - began
    if before is not None and after is not None and after - before <= _QUIET * lasted:
        with suppress(OSError), whole_file(path) as draft:
            draft.write_text(json.dumps({**kept, key: chosen}), encoding="utf-8")
    return chosen


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
