"""From the tensors of a checkpoint to the parts of a decoder.

Invariant: weights that this decoder would compute wrongly are refused, in one sentence that names
the file and the tensor. Only one part is in memory at a time, however large the checkpoint. Rounded
weights are kept in files, and mapped into memory from them.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from chatapp.common.paths import cache_dir
from chatapp.common.userfiles import whole_file
from chatapp.engine.decoder.families import checkpoint_of
from chatapp.engine.decoder.families.architecture import Architecture, Checkpoint, WeightPart
from chatapp.engine.errors import ModelError
from chatapp.engine.files.model_files import ModelFiles, gguf_parts
from chatapp.engine.files.safetensors import (
    TensorHeader,
    is_buffer,
    open_weights,
    read_tensors,
    weight_files,
)
from chatapp.engine.kernels.rounding import to_float


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tensor of a checkpoint: one of those stacked in a part, and its shape, (out, …).

    is_transposed: whether the checkpoint has it as (in, out).
    """

    part: WeightPart
    index: int
    shape: tuple[int, ...]
    is_transposed: bool


def read_weights(
    files: ModelFiles, tensors: Mapping[str, Tensor] | None = None, *, four_bits: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a checkpoint by the names of `Architecture.parts`, in float32.

    tensors: by their names in a checkpoint, instead of those in the files. four_bits: whether
    four-bit matrices come as (out, bytes), uint8; see chatapp/engine/kernels/rounding.py. Matrices
    come as (out, in). A checkpoint that ties its output matrix to the embedding may contain it
    anyway: it is yielded only when it differs. Raises NoDecoder for an unsupported model,
    ModelError that names file and tensor when one is missing, unknown or has the wrong shape.
    """
    checkpoint = checkpoint_of(files.family, files.config_file)
    architecture = files.architecture
    awaited = _pieces(checkpoint, architecture)
    known = awaited | _pieces_of(checkpoint, architecture, architecture.output)
    unfinished: dict[str, dict[int, Tensor]] = {}
    ends: dict[str, Tensor] = {}
    if tensors is None:
        stored = stored_tensors(files, known, four_bits=four_bits)
    else:
        stored = _readers_of(files, tensors)
    for header, read in stored:
        if is_buffer(header.name):
            continue
        name = header.name if header.name in known else checkpoint.prefix + header.name
        if (piece := known.get(name)) is None:
            raise ModelError(
                f"{header.file}: tensor {header.name!r} does not belong to a {files.family} model"
            )
        awaited.pop(name, None)
        pieces = unfinished.setdefault(piece.part.name, {})
        pieces[piece.index] = _read(piece, header, read, four_bits=four_bits and files.is_gguf)
        if len(pieces) < len(piece.part.rows):
            continue
        tensor = _stacked(unfinished.pop(piece.part.name))
        tensor = checkpoint.arrange(architecture, piece.part, tensor)
        if piece.part.name in ("embed.weight", "head.weight"):
            ends[piece.part.name] = tensor
        else:
            yield piece.part.name, tensor
    for name in awaited:
        raise _missing(files, name)
    own = ends.get("head.weight")
    if architecture.is_tied and own is not None and own.equal(ends["embed.weight"]):
        del ends["head.weight"]
    yield from ends.items()


def _missing(files: ModelFiles, name: str) -> ModelError:
    sources = weight_sources(files)
    where = sources[0] if len(sources) == 1 else files.path
    return ModelError(f"{where}: tensor {name!r} is missing")


def _readers_of(
    files: ModelFiles, tensors: Mapping[str, Tensor]
) -> Iterator[tuple[TensorHeader, Callable[[], Tensor]]]:
    """Tensors in the form of `stored_tensors`."""
    for name, tensor in tensors.items():
        header = TensorHeader(files.path, name, tuple(tensor.shape), str(tensor.dtype))
        yield header, tensor.detach


def _pieces(checkpoint: Checkpoint, architecture: Architecture) -> dict[str, _Piece]:
    """The tensors that a checkpoint must contain, by their names there."""
    pieces: dict[str, _Piece] = {}
    for part in architecture.parts():
        pieces |= _pieces_of(checkpoint, architecture, part)
    return pieces


def _pieces_of(
    checkpoint: Checkpoint, architecture: Architecture, part: WeightPart
) -> dict[str, _Piece]:
    """The tensors of a checkpoint that form a part."""
    names = checkpoint.stored_names(part.name)
    # If a checkpoint stacks them itself, under one name, the part is read as one.
    if len(names) < len(part.rows):
        part = WeightPart(part.name, (sum(part.rows),), part.columns)
    is_transposed = checkpoint.is_transposed and part.is_product and part.name != "head.weight"
    pieces = {}
    for index, (name, rows) in enumerate(zip(names, part.rows, strict=True)):
        shape = (rows,) if part.columns is None else (rows, part.columns)
        pieces[name] = _Piece(part, index, shape, is_transposed)
    return pieces


def _read(
    piece: _Piece, header: TensorHeader, read: Callable[[], Tensor], *, four_bits: bool
) -> Tensor:
    """A tensor in float32, or if allowed, in four bits, (out, …).

    Raises ModelError when its shape or type is wrong.
    """
    expected = piece.shape[::-1] if piece.is_transposed else piece.shape
    if header.shape != expected:
        raise ModelError(
            f"{header.file}: tensor {header.name!r} has the shape {list(header.shape)}; "
            f"expected {list(expected)} by the model's configuration"
        )
    tensor = read()
    if tensor.dtype == torch.uint8 and four_bits:
        return tensor
    if not tensor.is_floating_point():
        raise ModelError(
            f"{header.file}: tensor {header.name!r} holds {tensor.dtype}; expected a float type"
        )
    # A copy, because safetensors may map the file itself into memory.
    tensor = tensor.to(torch.float32, copy=True)
    check_finite(tensor, header.file, header.name)
    return tensor.t().contiguous() if piece.is_transposed else tensor


def check_finite(tensor: Tensor, file: Path, name: str) -> None:
    """Raises ModelError for a tensor with an infinite value or NaN."""
    # A sum reads it once and allocates nothing; that of large numbers may overflow.
    if not tensor.sum().isfinite() and not tensor.isfinite().all():
        raise ModelError(
            f"{file}: tensor {name!r} holds NaN or infinity; the training has diverged, or the "
            "file is damaged"
        )


def _stacked(pieces: dict[int, Tensor]) -> Tensor:
    if len(pieces) == 1:
        return pieces[0]
    stack = [pieces[index] for index in range(len(pieces))]
    if len({tensor.dtype for tensor in stack}) > 1:
        stack = [to_float(tensor) if tensor.dtype == torch.uint8 else tensor for tensor in stack]
    return torch.cat(stack)


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
    return list(gguf_parts(files.path)) if files.is_gguf else weight_files(files.path)


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
    blocks, output = _read_kept(path, state), _read_kept(head, state)
    if blocks is None or output is None:
        blocks, output = make(), {}
        for name in [name for name in blocks if name.startswith("head.")]:
            output[name] = blocks.pop(name)
        with suppress(OSError):
            _write_kept(path, blocks, state)
            _write_kept(head, output, state)
            # Mapped weights need not stay in memory.
            blocks, output = _read_kept(path, state) or blocks, _read_kept(head, state) or output
    return {**blocks, **output}


def _state(files: ModelFiles) -> list[tuple[str, int, int]]:
    """Name, size and time of the source files of the weights."""
    sources = dict.fromkeys([files.config_file, *weight_sources(files)])
    return [(s.name, stat.st_size, stat.st_mtime_ns) for s in sources for stat in [s.stat()]]


def _read_kept(path: Path, state: str) -> Weights | None:
    if not path.is_file():
        return None
    try:
        with open_weights(path, "pt") as tensors:
            if (tensors.metadata() or {}).get("state") != state:
                return None
            return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    except ModelError:
        return None


def _write_kept(path: Path, weights: Mapping[str, Tensor], state: str) -> None:
    """Write a file atomically. Raises OSError."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        with whole_file(path) as draft:
            save_file(dict(weights), draft, metadata={"state": state})
    except SafetensorError as error:
        raise OSError(str(error)) from None
