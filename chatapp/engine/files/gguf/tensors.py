"""The tensors of a GGUF file under their Hugging Face names and in that layout.

Names come from the gguf package. The changes of the conversion to GGUF (the family's
`GGUFRow.change`) are undone. Four-bit matrices stay so for int4, and never become floats on the
way. Their storage differs: a scale and numbers around 8 (Q4_0), a scale, a least value and numbers
(Q4_1), or groups whose scales are six-bit numbers themselves (Q4_K). Each is converted to groups of
32 weights w = s · (n - 8) + z, as in kernels/rounding.py.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
from numpy.typing import NDArray
from torch import Tensor

from chatapp.engine.decoder.families import family_in_gguf
from chatapp.engine.decoder.families.gguf_row import ARCHITECTURE, Config, TensorChange
from chatapp.engine.files.gguf.reader import GGUFFile
from chatapp.engine.files.safetensors import TensorHeader
from chatapp.engine.kernels.rounding import GROUP, Group

Bytes = NDArray[np.uint8]
Parts = tuple[Bytes, NDArray[np.float32], NDArray[np.float32]]

# Weights of a block of Q4_K, and groups in it.
_SUPER = 256
_GROUPS = _SUPER // GROUP


def groups_of(data: Bytes, kind: str) -> Bytes:
    """The rows of a matrix as rows of `Group`s, in bytes: (out, in / 32 · size of a group).

    data: (out, bytes of a row), as stored. kind: one of `KINDS`.
    """
    numbers, scale, zero = KINDS[kind](data)
    groups = np.empty(scale.shape, Group)
    groups["numbers"], groups["scale"], groups["zero"] = numbers, scale, zero
    return groups.view(np.uint8)


def _halves(data: Bytes) -> NDArray[np.float32]:
    """Two bytes each: float16."""
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)[..., 0]


def _nibbles(data: Bytes) -> Bytes:
    """The lower four bits of all bytes (…, n), then the upper ones: (…, 2 n)."""
    return np.concatenate((data & 15, data >> 4), axis=-1)


def _q4_0(data: Bytes) -> Parts:
    blocks = data.reshape(len(data), -1, 2 + GROUP // 2)
    scale = _halves(blocks[..., :2])
    return _nibbles(blocks[..., 2:]), scale, np.zeros_like(scale)


def _q4_1(data: Bytes) -> Parts:
    blocks = data.reshape(len(data), -1, 4 + GROUP // 2)
    scale, least = _halves(blocks[..., :2]), _halves(blocks[..., 2:4])
    return _nibbles(blocks[..., 4:]), scale, least + 8 * scale


def _q4_k(data: Bytes) -> Parts:
    """Unpack a Q4_K block.

    Of its 12 bytes of six-bit numbers, the first four hold the scales of four groups, the next four
    their minima; the upper bits of these and the last four bytes hold those of the other groups.
    """
    blocks = data.reshape(len(data), -1, 4 + 12 + _SUPER // 2)
    low, middle, high = (blocks[..., start : start + 4] for start in (4, 8, 12))
    scales = np.concatenate((low & 63, (high & 15) | (low >> 6 << 4)), axis=-1)
    leasts = np.concatenate((middle & 63, (high >> 4) | (middle >> 6 << 4)), axis=-1)
    scale = _halves(blocks[..., :2])[..., None] * scales
    least = _halves(blocks[..., 2:4])[..., None] * leasts
    # The lower bits of 32 bytes are one group, the upper ones the next.
    numbers = _nibbles(blocks[..., 16:].reshape(*blocks.shape[:2], _GROUPS // 2, GROUP))
    rows = len(data)
    return (
        numbers.reshape(rows, -1, GROUP),
        scale.reshape(rows, -1),
        (8 * scale - least).reshape(rows, -1),
    )


KINDS: dict[str, Callable[[Bytes], Parts]] = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q4_K": _q4_k}


def gguf_tensors(
    file: GGUFFile, config: Config, expected: Iterable[str], *, four_bits: bool = False
) -> Iterator[tuple[TensorHeader, Callable[[], Tensor]]]:
    """Yield each tensor of a file with its reader.

    config: from `read_config`. expected: the Hugging Face names that the model may have. Other
    tensors keep their names in the file. four_bits: whether four-bit matrices are read as (out,
    bytes), see `groups_of`. Raises ModelError when the file has no tensors.
    """
    headers = file.headers()
    names = gguf_names(file.metadata[ARCHITECTURE], config, expected)
    known = {stored: name for name, stored in names.items()}
    family = family_in_gguf(file.metadata[ARCHITECTURE])
    for header in headers:
        stored = header.name
        change = TensorChange() if family is None else family.gguf.change(config, stored)
        shape = header.shape[::-1] if change.is_transposed else header.shape
        as_groups = four_bits and header.dtype in KINDS
        read = partial(_read_groups if as_groups else _read, file, stored, change)
        yield replace(header, name=known.get(stored, stored), shape=shape), read


def gguf_names(architecture: str, config: Config, names: Iterable[str]) -> dict[str, str]:
    """The GGUF names of tensors, by their Hugging Face names.

    Names that the architecture lacks are left out.
    """
    blocks = config.get("num_hidden_layers") or config["n_layer"]
    number = next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture)
    table = get_tensor_name_map(number, blocks)
    stored = ((name, table.get_name(name, (".weight", ".bias"))) for name in names)
    return {name: inside for name, inside in stored if inside is not None}


def _read(file: GGUFFile, stored: str, change: TensorChange) -> Tensor:
    return change.undo(file.read(stored))


def _read_groups(file: GGUFFile, stored: str, change: TensorChange) -> Tensor:
    import torch

    return change.undo_rows(torch.from_numpy(groups_of(*file.blocks(stored))))
