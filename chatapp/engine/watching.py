"""A long work on a thread of its own, watched from where it was asked for.

Keep: whatever ends the watching (Ctrl+C, an error of the one who shows the progress) stops the
work too, and is raised when that has ended.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

Progress = Callable[[int, int], None]
"""Called with how many bytes are there, and of how many."""

T = TypeVar("T")

_INTERVAL = 0.1
"""Seconds between two looks at how far the work is."""


def watched(work: Callable[[], T], *, look: Callable[[], None], stop: Callable[[], None]) -> T:
    """Do a work; returns what it returns, or raises what it raises.

    look: called now and then meanwhile, on this thread.
    stop: makes the work end early.
    """
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(work)
        try:
            while not future.done():
                look()
                wait([future], timeout=_INTERVAL)
            look()
        except BaseException:
            stop()
            raise
        return future.result()


def bytes_below(folder: Path) -> int:
    """How many bytes the files below a folder have, while they may come and go."""
    total = 0
    for path in folder.rglob("*"):
        try:
            if not path.is_symlink():
                total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
