"""Runtime services: milestones of the start, garbage collection, errors in words, and the end of
the program in time, whatever is running.

Set the environment variable _CHATAPP_TIMINGS to a file name, and every milestone is appended to
that file as one JSON line {"event": …, "seconds": …}, in seconds of the system's monotonic clock,
which the parent process can read as well. (The underscore distinguishes the variable from the
settings, which begin with CHATAPP_.) The milestones: `first_frame` (the screen has been drawn),
`model_ready`, and `first_token` (the first text of a reply has been drawn).

Invariants: without the variable nothing is recorded. When a model is in use, no unused model is in
memory, even if screens, which are full of cycles, referred to it. The words of an error are never
empty, because they are the only reason that the user gets.
"""

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from chatapp.common.foreign import printable
from chatapp.dialogue.store.database import StoreError


def mark(event: str) -> None:
    """Record a milestone."""
    target = os.environ.get("_CHATAPP_TIMINGS")
    if target:
        line = json.dumps({"event": event, "seconds": round(time.monotonic(), 4)})
        with Path(target).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def settle(*, is_switch: bool) -> None:
    """Keep the garbage collector from what stays, and collect what does not.

    All imported objects stay forever. The collector would otherwise scan them again and again, and
    the screen would freeze for that long.

    is_switch: whether there was a model before. It may still be in use at this moment, by a screen
    that is closing, so that nothing is frozen again: a frozen model would never be collected.
    """
    if is_switch:
        gc.unfreeze()
        gc.collect()
    else:
        gc.freeze()


def in_words(error: BaseException) -> str:
    """An error as a sentence for the user."""
    return str(error) or type(error).__name__


@contextmanager
def store_errors(show: Callable[[str], None]) -> Iterator[None]:
    """Show an error of the store instead of failing."""
    try:
        yield
    except StoreError as error:
        show(str(error))


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
