"""Runtime services: milestones of the start, garbage collection, errors in words.

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
import time
from pathlib import Path


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
