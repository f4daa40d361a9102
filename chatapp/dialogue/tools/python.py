"""The tool `python`: code that a model has written, in a process of its own.

Invariant: the process gets no variables of yours and an empty folder that is removed after the
call; it ends when its time, memory or output is over. Before the code is compiled, the process
gives up what `confine` names. It runs as you: you have seen the code.
"""

import ast
import linecache
import os
import secrets
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from itertools import count
from pathlib import Path

from chatapp.common.confinement import confine
from chatapp.common.foreign import parse_json
from chatapp.common.limited_process import Program, python_command
from chatapp.dialogue.tools.tool import LONGEST_RESULT, Arguments
from chatapp.dialogue.tools.user_tools import CommandLine

_SECONDS = 10.0
_MEMORY = 2**30
_NAME = "<code>"


def run_python(arguments: Arguments, cancel: threading.Event) -> str:
    """What the code prints, and the value of its last line. Raises ToolError and Stopped."""
    folder = tempfile.mkdtemp(prefix="chatapp-")
    try:
        command = python_command(__name__, "run_given", _MEMORY)
        program = Program(command, Path(folder), variables=(("HOME", folder), ("TMPDIR", folder)))
        run = CommandLine(program, _SECONDS, LONGEST_RESULT).run
        return run(arguments, cancel) or "nothing was printed"
    finally:
        with suppress(OSError):
            _remove(folder)


def run_given(memory: int) -> None:
    """Run the code on standard input, {"code": …}, and print the value of its last line as an
    interactive interpreter does. memory: its limit in bytes.
    """
    code = parse_json(sys.stdin.read())["code"]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the code has no input
    linecache.cache[_NAME] = len(code), None, code.splitlines(keepends=True), _NAME
    if problem := confine(memory, folder=os.getcwd()):
        sys.exit(f"{problem}, so none is run")
    try:
        _run(code)
    except Exception as error:
        sys.stdout.flush()
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != _NAME:
            trace = trace.tb_next  # this program's own frames
        traceback.print_exception(error.with_traceback(trace), limit=-3)
        sys.exit(1)


def _run(code: str) -> None:
    tree = ast.parse(code, _NAME)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    names = {"__name__": "__main__"}
    exec(compile(tree, _NAME, "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), _NAME, "eval"), names)
        if value is not None:
            print(repr(value))


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
