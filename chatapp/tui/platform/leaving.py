"""The end of the program in time, whatever is running."""

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from chatapp.common.foreign import printable

GRACE = 0.6
"""Seconds that the program gets to end by itself after the key that quits it."""

_STEP_SECONDS = 0.15
"""That each of the last steps gets after that."""


class LastResort:
    """Ends the process when the program does not end by itself. steps: what is done before, each
    on a thread of its own, whether or not those before it have ended."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = steps
        self._timer: threading.Timer | None = None

    def prepare(self) -> None:
        """Give the program its time, from the first call on."""
        if self._timer is None:
            self._timer = threading.Timer(GRACE, self._end)
            self._timer.daemon = True
            self._timer.start()

    def call_off(self) -> None:
        """Let the program go on, or end by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        for step in self._steps:
            thread = threading.Thread(target=_try, args=(step,), daemon=True)
            thread.start()
            thread.join(_STEP_SECONDS)
        os._exit(0)


def _try(step: Callable[[], object]) -> None:
    with suppress(Exception):  # the next step is tried whatever this one meets
        step()


def print_abandoned(work: Sequence[str]) -> None:
    """Print what did not come to its end. work: in words, a part of a sentence each."""
    if work and sys.__stderr__ is not None:  # Textual takes what is written to the other
        words = printable("; ".join(work)).replace("\n", " ")
        print(f"Abandoned: {words}.", file=sys.__stderr__, flush=True)
