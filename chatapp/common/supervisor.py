"""Runs a program and ends all processes it started: `python supervisor.py CONTROL COMMAND…`

CONTROL is the descriptor of a socket. When the other side closes it, or dies, the program is ended.
At its own end the supervisor writes there how the program ended: its exit status, minus the number
of the signal, or a sentence on why it could not be started.

Invariant: the supervisor ends after all processes of the program. On Linux this includes daemons
with a session of their own: the supervisor is the subreaper, so an orphan becomes its child. On
other systems a process that has left the program's group is known only while its parent runs.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psutil

_IS_LINUX = sys.platform == "linux"
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.002


def main() -> None:
    """See above."""
    control, command = int(sys.argv[1]), sys.argv[2:]
    if _IS_LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        process = subprocess.Popen(command, start_new_session=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        _report(control, f"{command[0]} cannot be started: {reason}")
    threading.Thread(target=_end_when_closed, args=(control, process.pid), daemon=True).start()
    status = _wait_for(process.pid)
    _end_children(process.pid)
    _report(control, str(os.waitstatus_to_exitcode(status)))


def _report(control: int, text: str) -> None:
    """Write how the program ended, and exit."""
    with suppress(OSError):  # nobody reads it any more
        os.write(control, text.encode("utf-8", "replace"))
    os._exit(0)  # without waiting for the thread


def _end_when_closed(control: int, pid: int) -> None:
    with suppress(OSError):
        os.read(control, 1)
    while True:  # until the main thread, which reaps, has ended the process
        _kill_children(pid)
        time.sleep(_POLL_SECONDS)


def _wait_for(pid: int) -> int:
    """The wait status of a child, once it has ended; orphans that end before it are reaped."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return status


def _end_children(pid: int) -> None:
    """Return after all processes below this one have ended."""
    with suppress(ChildProcessError):  # there is no child left
        while True:
            _kill_children(pid)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(_POLL_SECONDS)


def _kill_children(pid: int) -> None:
    """Kill all processes below this one, and the group of a child."""
    if not _IS_LINUX:  # the group may have members that are no longer below this process
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.kill()


if __name__ == "__main__":
    main()
