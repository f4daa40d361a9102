"""The tensors of a model one by one, whatever its files are.

Keep: a tensor is read when it is asked for, so that a model can be converted without being whole
in memory first.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from chatapp.engine.checkpoint.safetensors import read_tensors, weight_files
from chatapp.engine.folder import ModelFiles
from chatapp.engine.tensor_header import TensorHeader

if TYPE_CHECKING:
    from torch import Tensor


def stored_tensors(
    files: ModelFiles, expected: Iterable[str], *, four_bits: bool = False
) -> Iterator[tuple[TensorHeader, Callable[[], "Tensor"]]]:
    """Each tensor of a model, and what reads it; to be read before the next one is asked for.

    expected: the names that its tensors may have, by which those of a GGUF file are known.
    four_bits: whether what is stored in four bits is given so; see chatapp/engine/four_bits.py.
    Raises ModelError when a file is missing or broken.
    """
    if not files.is_gguf:
        yield from read_tensors(files.path)
        return
    # The gguf package takes as long to import as a small model to load.
    from chatapp.engine.gguf.file import GGUFFile
    from chatapp.engine.gguf.weights import gguf_tensors

    yield from gguf_tensors(GGUFFile(files.path), files.config, expected, four_bits=four_bits)


def weight_sources(files: ModelFiles) -> list[Path]:
    """The files that the tensors are in. Raises ModelError when there are none."""
    return [files.path] if files.is_gguf else weight_files(files.path)
