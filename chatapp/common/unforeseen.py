"""Errors that nobody foresaw, as one sentence for the user and a traceback in the log.

Invariant: only an interrupt passes. A panic of a Rust library (`PanicException`) is a BaseException
and no Exception, and is an error like any other.
"""

import logging
import os
import sys
import threading
import traceback
import warnings
from contextlib import suppress
from datetime import datetime
from io import TextIOWrapper
from typing import Any

from chatapp.common.foreign import printable
from chatapp.common.userfiles import open_own

INTERRUPTS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What ends the program or a generator on purpose: to be raised again where all else is caught."""


def is_debugging() -> bool:
    """Whether CHATAPP_DEBUG is set: tracebacks are shown, and Textual's console is connected."""
    return bool(os.environ.get("CHATAPP_DEBUG"))


def prepare_streams() -> None:
    """Give the program three streams that can be used: a closed one gives nothing, and refuses what
    is written as a full disk does, except standard error; what an encoding lacks becomes a mark.
    """
    for name, mode in (("stdin", "r"), ("stdout", "r"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(null, mode, encoding="utf-8"))
        elif mode == "w" or name == "stdout":
            with suppress(AttributeError):  # a stream of a test
                getattr(sys, name).reconfigure(errors="replace")


def silence_libraries() -> None:
    """Keep the words of libraries from the terminal and every log: they may be a client's or a
    server's, with keys and escapes. Of a message remains where it comes from and of what kind it
    is, of a warning nothing, of an error on a thread one sentence. While debugging, all is shown.
    """
    if is_debugging():
        return
    logging.lastResort = logging.NullHandler()  # where none is set up, a terminal is
    logging.setLogRecordFactory(_without_words)
    warnings.showwarning = lambda *_: None
    threading.excepthook = lambda error: print(
        f"chatapp: {printable(describe_unforeseen(error.exc_value or SystemExit()))}",
        file=sys.stderr,
    )
    sys.unraisablehook = lambda _: None


_OWN = ("chatapp", "finetune")


def _without_words(*given: Any, **options: Any) -> logging.LogRecord:
    """A record; of a library's, without its text and its traceback."""
    name, level, path, line, message, arguments, error, *rest = given
    if not name.startswith(_OWN):
        kind = error[0].__name__ if error and error[0] else logging.getLevelName(level).lower()
        message, arguments, error, rest = f"{name}: {kind}", (), None, []
    return logging.LogRecord(name, level, path, line, message, arguments, error, *rest, **options)


def describe_unforeseen(error: BaseException) -> str:
    """A sentence on an error, which says where its traceback is: in the log file.

    While debugging, the traceback is on standard error as well.
    """
    if is_debugging():
        print(printable("".join(traceback.format_exception(error))), file=sys.stderr, end="")
    name, words = type(error).__name__, " ".join(str(error).split())
    return f"an unexpected error, {name}: {words}; {_log(error)}"


def _log(error: BaseException) -> str:
    """Write the traceback to the log file; returns where it is."""
    from chatapp.common.paths import log_dir

    path = log_dir() / "chatapp.log"
    words = "".join(traceback.format_exception(error))
    try:
        with TextIOWrapper(open_own(path), encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} ERROR unexpected error\n{words}")
    except OSError as problem:
        return f"the traceback could not be written to {path}: {problem.strerror}"
    return f"the traceback is in {path}"
