"""What a model's matrices are stored and multiplied as, and int8 weights kept on disk.

Keep: the kept weights are those of the folder as it is now. A file that is missing, old or
broken is made again, and without room on disk the model works all the same.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from chatapp.engine.checkpoint import CONFIG, ModelError, open_weights, weight_files
from chatapp.engine.linear import quantise
from chatapp.paths import cache_dir

# To be raised when what the files hold changes.
_VERSION = 2

# Below, a token costs less in float32: there is little to read, and int8 needs more calls.
_INT8_FROM = 2**25

Weights = dict[str, Tensor]


def precision_for(precision: str, parameters: int, device: torch.device) -> str:
    """The precision that "auto" stands for, as what is fastest on a device.

    That is int8 for large models on a processor made for it, bfloat16 on a cuda device made
    for that, else float32.
    parameters: weights in the matrices of the model.
    Raises ModelError when this machine cannot multiply in int8 and it was asked for.
    """
    able = torch._C._has_mkldnn and hasattr(torch.ops.onednn, "qlinear_prepack")
    if precision == "int8" and not able:
        raise ModelError("this build of torch cannot multiply in int8; choose float32")
    if precision != "auto":
        return precision
    if device.type == "cuda":
        able = torch.cuda.is_bf16_supported(including_emulation=False)
        return "bfloat16" if able else "float32"
    if device.type != "cpu":
        return "float32"
    # Without these instructions, sums of two products overflow or take several steps.
    fast = torch.cpu.get_capabilities().get("avx512_vnni", False)
    return "int8" if able and fast and parameters >= _INT8_FROM else "float32"


def is_matrix(name: str, tensor: Tensor) -> bool:
    """Whether a tensor of a GPT-2 is the matrix of a linear layer, not an embedding."""
    return tensor.ndim == 2 and not name.startswith(("wte.", "wpe."))


def to_bfloat16(weights: Weights) -> Weights:
    """Matrices and the token embedding, which may be the output matrix as well, in bfloat16."""
    return {
        name: tensor.to(torch.bfloat16)
        if is_matrix(name, tensor) or name == "wte.weight"
        else tensor
        for name, tensor in weights.items()
    }


def to_int8(weights: Weights) -> Weights:
    """Each matrix in int8 with its scales; the output matrix apart from the embedding.

    The token embedding, of which a token needs but one row, is in float16 if that can hold it.
    """
    found: Weights = {}
    for name, tensor in {"lm_head.weight": weights["wte.weight"], **weights}.items():
        if is_matrix(name, tensor):
            found[name], found[f"{name}.scale"] = quantise(tensor)
        else:
            found[name] = tensor
    half = found["wte.weight"].half()
    if half.isfinite().all():
        found["wte.weight"] = half
    return found


def kept_int8(folder: Path, read: Callable[[], Weights]) -> Weights:
    """The int8 weights of a model folder, mapped into memory from files.

    read: the folder's weights in float32, asked for only when there are no such files yet.
    """
    state = json.dumps([_VERSION, *_state(folder)])
    # Files by the folder, so that a model trained further does not leave its old ones behind.
    key = hashlib.sha256(str(folder.resolve()).encode(errors="surrogateescape")).hexdigest()
    path = cache_dir() / "int8" / f"{key[:32]}.safetensors"
    # The output matrix is multiplied by in a form of oneDNN's own alone. In a file of its own,
    # it leaves memory when it has been brought into that.
    head = path.with_suffix(".head.safetensors")
    blocks, output = _read(path, state), _read(head, state)
    if blocks is None or output is None:
        blocks, output = to_int8(read()), {}
        for name in [name for name in blocks if name.startswith("lm_head.")]:
            output[name] = blocks.pop(name)
        with suppress(OSError):
            _write(path, blocks, state)
            _write(head, output, state)
            # Mapped, they need not stay in memory.
            blocks, output = _read(path, state) or blocks, _read(head, state) or output
    return {**blocks, **output}


def _state(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of what the weights are read from."""
    files = [folder / CONFIG, *weight_files(folder)]
    return [(file.name, stat.st_size, stat.st_mtime_ns) for file in files for stat in [file.stat()]]


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

    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    try:
        save_file(dict(weights), temporary, metadata={"state": state})
        os.replace(temporary, path)
    except SafetensorError as error:
        raise OSError(str(error)) from None
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
