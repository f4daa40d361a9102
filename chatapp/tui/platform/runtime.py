"""When the program reached its milestones, for measuring its start.

Set the environment variable _CHATAPP_TIMINGS to a file name, and every milestone is appended
to that file as one JSON line {"event": …, "seconds": …}, in seconds of the system's monotonic
clock, which whoever starts the program can read as well. (The underscore sets the variable apart
from the settings, which begin with CHATAPP_.) The milestones: `first_frame` (the screen has been
drawn), `model_ready`, and `first_token` (the first text of a reply has been drawn).

Keep: without the variable nothing is done.
"""

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
