"""The tensors of a model one by one, and its rounded weights, kept on disk for the next start.

Keep: a tensor is read when its reader is called, so that a model can be converted without being
whole in memory first. Kept weights are those of the files as they are now: a kept file that is
missing, old or broken is made again, and without room on disk the model works all the same.
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
    """Each tensor of a model, and what reads it, to be called before the next one is taken.

    expected: the names that its tensors may have, by which those of a GGUF file are known.
    four_bits: whether what is stored in four bits is given so; see kernels/rounding.py.
    Raises ModelError when a file is missing or broken.
    """
    if files.gguf is None:
        yield from read_tensors(files.path)
        return
    # The gguf package takes as long to import as a small model to load.
    from chatapp.engine.files.gguf.tensors import gguf_tensors

    yield from gguf_tensors(files.gguf, files.config, expected, four_bits=four_bits)


def weight_sources(files: ModelFiles) -> list[Path]:
    """The files that the tensors are in. Raises ModelError when there are none."""
    return [files.path] if files.is_gguf else weight_files(files.path)


# To be raised when what the files hold changes.
_VERSION = 8

Weights = dict[str, Tensor]


def kept_weights(
    files: ModelFiles, precision: str, order: str, quantise: Callable[[], Weights]
) -> Weights:
    """The weights of a model in int8 or int4, mapped into memory from files.

    order: of the numbers in a matrix, which differs between machines.
    quantise: makes them, asked only when no such files are kept yet.
    """
    state = json.dumps([_VERSION, order, *_state(files)])
    # Named by the folder, so that a model trained further does not leave its old ones behind.
    key = hashlib.sha256(str(files.path.resolve()).encode(errors="surrogateescape")).hexdigest()
    path = cache_dir() / precision / f"{key[:32]}.safetensors"
    # The output matrix is multiplied by in a form of oneDNN's own alone. In a file of its own,
    # it leaves memory when it has been brought into that.
    head = path.with_suffix(".head.safetensors")
    blocks, output = _read(path, state), _read(head, state)
    if blocks is None or output is None:
        blocks, output = quantise(), {}
        for name in [name for name in blocks if name.startswith("head.")]:
            output[name] = blocks.pop(name)
        with suppress(OSError):
            _write(path, blocks, state)
            _write(head, output, state)
            # Mapped, they need not stay in memory.
            blocks, output = _read(path, state) or blocks, _read(head, state) or output
    return {**blocks, **output}


def _state(files: ModelFiles) -> list[tuple[str, int, int]]:
    """Name, size and time of what the weights are read from."""
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
    """Put a whole file in its place, or none. Raises OSError."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        with whole_file(path) as draft:
            save_file(dict(weights), draft, metadata={"state": state})
    except SafetensorError as error:
        raise OSError(str(error)) from None
