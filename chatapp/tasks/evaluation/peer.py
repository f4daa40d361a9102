"""llama.cpp beside this program: the same weights, in a process of its own, in turns with ours.

`python -m chatapp.tasks.evaluation.peer FILE THREADS` loads a GGUF file and answers requests, one
JSON document a line, by llama.cpp's own clock. In one process the two would disturb each other.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from chatapp.common.foreign import parse_json
from chatapp.common.limited_process import module_command
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.engine.files.model_files import ModelFiles

PACKAGE = "xllamacpp"
"""A wheel that has llama.cpp in it."""

_KINDS = {"float32": "f32", "int8": "q8_0", "int4": "q4_0"}
"""How a GGUF file stores what we compute in a precision."""

_PAUSE = 0.3
"""Seconds after each turn: llama.cpp's threads keep cores busy for a while."""


@dataclass(frozen=True, slots=True)
class PeerSpeed:
    """Tokens per second: medians, with one thread or one for each core, whichever is faster.

    version: of `PACKAGE`. kind: how the file stores matrices.
    """

    version: str
    kind: str
    prefill: float
    decode: float


class Peer:
    """Processes with llama.cpp, one for each number of threads; see `llama_cpp`."""

    def __init__(self, processes: "list[subprocess.Popen[str]]", kind: str) -> None:
        self._processes, self.kind, self.version = processes, kind, version(PACKAGE)

    def seconds(self, prompt: list[int], new: int) -> list[tuple[float, float]]:
        """The seconds to read a prompt, and to write `new` tokens after it, of each process.

        Raises UserError when llama.cpp fails.
        """
        answers: list[tuple[float, float]] = []
        for process in self._processes:
            assert process.stdin is not None
            print(json.dumps([prompt, new]), file=process.stdin, flush=True)
            answers.append(_answer(process))
            time.sleep(_PAUSE)
        return answers


def _answer(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise UserError(f"llama.cpp ({PACKAGE} {version(PACKAGE)}) cannot run this model")
    return parse_json(line)


@contextmanager
def llama_cpp(files: "ModelFiles", precision: str, threads: int) -> Iterator[Peer]:
    """llama.cpp with a model's weights as a GGUF file. threads: the most it gets.

    Raises UserError without `PACKAGE`, for a precision that a GGUF file does not have, and where
    llama.cpp cannot load the file; ModelError for a model that a GGUF file cannot express.
    """
    try:
        version(PACKAGE)
    except PackageNotFoundError:
        raise UserError(
            f"--against llama.cpp needs the package {PACKAGE}; pip install {PACKAGE}"
        ) from None
    if precision not in _KINDS:
        raise UserError(f"llama.cpp is measured in {', '.join(_KINDS)}, not in {precision}")
    from chatapp.engine.exporting import write_gguf

    kind, processes = _KINDS[precision], list["subprocess.Popen[str]"]()
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        write_gguf(files, path, kind, {}, lambda _, __: None)
        try:
            for count in sorted({1, threads}):
                command = module_command(__name__, str(path), str(count))
                processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        env=bare,
                        text=True,
                    )
                )
                _answer(processes[-1])
            time.sleep(_PAUSE)
            yield Peer(processes, kind)
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def _serve(path: str, threads: int) -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is not an answer
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path, options.n_ctx, options.n_parallel = path, 1024, 1
    for part in (options.cpuparams, options.cpuparams_batch):
        part.n_threads = threads
    server = xllamacpp.Server(options)
    print("true", file=answers, flush=True)
    for line in sys.stdin:
        prompt, new = parse_json(line)
        request = {"prompt": prompt, "n_predict": new, "temperature": 0, "ignore_eos": True}
        done: Any = server.handle_completions({**request, "cache_prompt": False})
        clock = done["timings"]
        seconds = clock["prompt_ms"] / 1000, clock["predicted_per_token_ms"] * new / 1000
        print(json.dumps(seconds), file=answers, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
