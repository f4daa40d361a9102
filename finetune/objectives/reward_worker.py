"""A user's reward function in a separate process: `python reward_worker.py FILE FUNCTION`.

Reads {"prompt", "reply", "reference"} per line from standard input and writes {"value"} or
{"error"} per line to standard output, first {"ready": true} when the function is loaded.
"""

import importlib.util
import json
import math
import numbers
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def load_function(file: str, name: str) -> Callable[[str, str, str], Any]:
    """Load a function from a file, which can import other files of its folder."""
    sys.path.insert(0, str(Path(file).absolute().parent))
    spec = importlib.util.spec_from_file_location("reward_function", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[[str, str, str], Any] = getattr(module, name)
    if not callable(function):
        raise TypeError(f"{name} is not a function")
    return function


def value_of(answer: object) -> float:
    """The result of a function, as a number. Raises ValueError."""
    if not isinstance(answer, numbers.Real):
        raise ValueError(f"gave {answer!r:.60}, expected a number")
    try:
        value = float(answer)
    except OverflowError:  # of an integer
        value = math.inf
    if not math.isfinite(value):
        raise ValueError(f"gave {value}, expected a number")
    return value


def serve(function: Callable[[str, str, str], Any], answers: IO[str]) -> None:
    """Answer the lines of standard input until it ends."""
    for line in sys.stdin:
        try:
            request = json.loads(line)
            answer = function(request["prompt"], request["reply"], request["reference"])
        except Exception as error:  # whatever the user's code raises
            _write(answers, {"error": f"raised {type(error).__name__}: {error}"})
            continue
        try:
            _write(answers, {"value": value_of(answer)})
        except ValueError as error:
            _write(answers, {"error": str(error)})


def main() -> None:
    """See above."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the function's output goes to standard error
    try:
        function = load_function(sys.argv[1], sys.argv[2])
    except Exception as error:  # whatever the user's file raises
        _write(answers, {"error": f"{type(error).__name__}: {error}"})
        return
    _write(answers, {"ready": True})
    serve(function, answers)


def _write(answers: IO[str], document: dict[str, Any]) -> None:
    answers.write(json.dumps(document) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
