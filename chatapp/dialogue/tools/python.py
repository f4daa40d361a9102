"""The tool `python`: code that a model has written, in a process of its own.

Invariant: the process gets no variables of yours and an empty folder that is removed after the
call; it ends when its time, memory or output is over. It runs as you: you have seen the code.
"""

import sys
import tempfile
import threading
from pathlib import Path

from chatapp.dialogue.tools.process import CommandLine, Program
from chatapp.dialogue.tools.tool import LONGEST_RESULT, Arguments

_RUNNER = Path(__file__).parent / "python_runner.py"
_SECONDS = 10.0
_MEMORY = 2**30


def run_python(arguments: Arguments, cancel: threading.Event) -> str:
    """What the code prints, and the value of its last line. Raises ToolError and Stopped."""
    with tempfile.TemporaryDirectory(prefix="chatapp-", ignore_cleanup_errors=True) as folder:
        command = (sys.executable, "-I", "-B", str(_RUNNER), str(_MEMORY))
        program = Program(command, Path(folder), variables=(("HOME", folder),))
        run = CommandLine(program, _SECONDS, LONGEST_RESULT).run
        return run(arguments, cancel) or "nothing was printed"
