"""When the program reached its milestones, for measuring its start.

Set the environment variable _CHATAPP_TIMINGS to a file name, and every milestone is appended
to that file as one JSON line {"event": …, "seconds": …}, counted from the start of the
process. (The underscore sets it apart from the settings, which begin with CHATAPP_.) The
milestones: `first_frame` (the screen has been drawn), `model_ready`, and
`first_token` (the first text of a reply has been drawn). Nothing is done without the variable.
"""

import json
import os
import time
from pathlib import Path

_IMPORTED = time.monotonic()


def seconds_since_start() -> float:
    """Seconds since this process began; since this import where the system does not tell."""
    try:
        status = Path("/proc/self/stat").read_text(encoding="utf-8")
        # The command's name comes in brackets and may hold spaces; field 22 is the start time.
        ticks = int(status.rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return time.monotonic() - _IMPORTED


def mark(event: str) -> None:
    """Note that a milestone has been reached."""
    target = os.environ.get("_CHATAPP_TIMINGS")
    if target:
        line = json.dumps({"event": event, "seconds": round(seconds_since_start(), 4)})
        with Path(target).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
