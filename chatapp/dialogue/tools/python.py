"""The tool `python`: code that a model has written, in a process of its own.

Invariant: the process gets no variables of yours and an empty folder that is removed after the
call; it ends when its time, memory or output is over. It runs as you: you have seen the code.
"""

import os
import secrets
import sys
import tempfile
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path

from chatapp.dialogue.tools.process import CommandLine, Program
from chatapp.dialogue.tools.tool import LONGEST_RESULT, Arguments

_RUNNER = Path(__file__).parent / "python_runner.py"
_SECONDS = 10.0
_MEMORY = 2**30


def run_python(arguments: Arguments, cancel: threading.Event) -> str:
    """What the code prints, and the value of its last line. Raises ToolError and Stopped."""
    folder = tempfile.mkdtemp(prefix="chatapp-")
    try:
        command = (sys.executable, "-I", "-B", str(_RUNNER), str(_MEMORY))
        program = Program(command, Path(folder), variables=(("HOME", folder),))
        run = CommandLine(program, _SECONDS, LONGEST_RESULT).run
        return run(arguments, cancel) or "nothing was printed"
    finally:
        with suppress(OSError):
            _remove(folder)


def _remove(folder: str) -> None:
    """Remove a folder and all in it, however deep: folders within a folder are first moved up, so
    nothing recurses and no path becomes too long. Raises OSError.
    """
    names = count()
    token = secrets.token_hex(8)
    while entries := list(os.scandir(folder)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry)
                continue
            os.chmod(entry, 0o700)
            for inner in list(os.scandir(entry)):
                if inner.is_dir(follow_symlinks=False):
                    os.chmod(inner, 0o700)
                    os.rename(inner, Path(folder) / f"{token}-{next(names)}")
                else:
                    os.unlink(inner)
            os.rmdir(entry)
    os.rmdir(folder)
