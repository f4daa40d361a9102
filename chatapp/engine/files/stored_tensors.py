"""Reads the tensors of a model one by one, and caches rounded weights on disk.

Invariant: a tensor is read when its reader is called, so a model can be converted without being
whole in memory. Cached weights match the current files: a missing, old or broken cache file is made
again, and without disk space the model works without one.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from chatapp.common.paths import cache_dir
from chatapp.common.userfiles import whole_file
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.files.safetensors import TensorHeader, open_weights, read_tensors, weight_files


def stored_tensors(
    files: ModelFiles, expected: Iterable[str], *, four_bits: bool = False
) -> Iterator[tuple[TensorHeader, Callable[[], Tensor]]]:
    """Yield each tensor of a model with its reader, to be called before the next one.

    expected: the names that its tensors may have, needed for those of a GGUF file. four_bits:
    whether four-bit storage is returned unchanged; see kernels/rounding.py. Raises ModelError when
    a file is missing or broken.
    """
    if files.gguf is None:
        yield from read_tensors(files.path)
        return
    # The gguf package takes as long to import as a small model to load.
    from chatapp.engine.files.gguf.tensors import gguf_tensors

    yield from gguf_tensors(files.gguf, files.config, expected, four_bits=four_bits)


def weight_sources(files: ModelFiles) -> list[Path]:
    """The files that contain the tensors. Raises ModelError when there are none."""
    return [files.path] if files.is_gguf else weight_files(files.path)


# To be raised when the contents of the files change.
_VERSION = 8

Weights = dict[str, Tensor]


def kept_weights(
    files: ModelFiles, precision: str, order: str, make: Callable[[], Weights]
) -> Weights:
    """The weights of a model in int8 or int4, memory-mapped from files.

    order: of the numbers in a matrix, which differs between machines. make: makes them; called
    only when the files are missing.
    """
    state = json.dumps([_VERSION, order, *_state(files)])
    # Named by the folder, so that a model trained further replaces its old files.
    key = hashlib.sha256(str(files.path.resolve()).encode(errors="surrogateescape")).hexdigest()
    path = cache_dir() / precision / f"{key[:32]}.safetensors"
    # oneDNN multiplies by the output matrix in a form of its own. In a separate file, the original
    # leaves memory after its conversion.
    head = path.with_suffix(".head.safetensors")
    blocks, output = _read(path, state), _read(head, state)
    if blocks is None or output is None:
        blocks, output = make(), {}
        for name in [name for name in blocks if name.startswith("head.")]:
            output[name] = blocks.pop(name)
        with suppress(OSError):
            _write(path, blocks, state)
            _write(head, output, state)
            # Mapped weights need not stay in memory.
            blocks, output = _read(path, state) or blocks, _read(head, state) or output
    return {**blocks, **output}


def _state(files: ModelFiles) -> list[tuple[str, int, int]]:
    """Name, size and time of the source files of the weights."""
    sources = dict.fromkeys([files.config_file, *weight_sources(files)])
    return [(s.name, stat.st_size, stat.st_mtime_ns) for s in sources for stat in [s.stat()]]


def _read(path: Path, state: str) -> Weights | None:
    if not path.is_file():
        return None
    try:
        with open_weights(path, "pt") as tensors:
            if (tensors.metadata() or {}).get("state") != state:
                return None
            return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    except ModelError:
        return None


def _write(path: Path, weights: Mapping[str, Tensor], state: str) -> None:
    """Write a file atomically. Raises OSError."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        with whole_file(path) as draft:
            save_file(dict(weights), draft, metadata={"state": state})
    except SafetensorError as error:
        raise OSError(str(error)) from None
