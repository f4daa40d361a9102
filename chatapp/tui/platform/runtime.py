"""When the program reached its milestones, for measuring its start.

Set the environment variable _CHATAPP_TIMINGS to a file name, and every milestone is appended
to that file as one JSON line {"event": …, "seconds": …}, in seconds of the system's monotonic
clock, which whoever starts the program can read as well. (The underscore sets the variable apart
from the settings, which begin with CHATAPP_.) The milestones: `first_frame` (the screen has been
drawn), `model_ready`, and `first_token` (the first text of a reply has been drawn).

Keep: without the variable nothing is done.

Python's collector of reference cycles, while models come and go.

Keep: no model that is out of use is in memory when the next one is in use, whatever screens,
which are full of cycles, referred to it.

Errors in words.

Keep: the words are never empty; they are the only reason the user gets.
"""

import gc
import json
import os
import time
from pathlib import Path


def mark(event: str) -> None:
    """Note that a milestone has been reached."""
    target = os.environ.get("_CHATAPP_TIMINGS")
    if target:
        line = json.dumps({"event": event, "seconds": round(time.monotonic(), 4)})
        with Path(target).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def settle(*, is_switch: bool) -> None:
    """Let the collector pass over all that is in memory, once a model is in use.

    What has been imported by then stays for good. The collector would look through all of it
    again and again, and the screen would stand still for that long.

    is_switch: whether there was a model before, which is collected first: it would stay for
        good as well.
    """
    if is_switch:
        gc.unfreeze()
        gc.collect()
    gc.freeze()


def in_words(error: BaseException) -> str:
    """An error as a sentence for the user."""
    return str(error) or type(error).__name__
