"""What a model's matrices are stored and multiplied as: the choice, and the conversions.

Invariant: which tensors are converted, and to what, is decided here; a layer follows from the type
of its weights (see linear.py).
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from chatapp.engine.errors import ModelError
from chatapp.engine.kernels import native
from chatapp.engine.kernels.linear import fits_int4
from chatapp.engine.kernels.machine import machine_memory
from chatapp.engine.kernels.rounding import int4_tiles, int8_tiles, quantise, to_float
from chatapp.engine.kernels.torch_internals import has_onednn_int8, int4_order
from chatapp.engine.kernels.torch_layers import pack_int4, quantise_int4

# Below, float32 is exact and fast enough: the bundled model takes 0.3 to 2 ms a token.
_INT8_FROM = 2**25

# The fraction of the machine's memory that int8 weights may take if "auto" chooses them: keys and
# values, and other programs, need memory too.
_COMFORTABLE = 0.5

QUANTISED = ("int8", "int4")
"""What is kept on disk, and multiplied on the CPU alone."""

Weights = dict[str, Tensor]
NamedTensors = Iterable[tuple[str, Tensor]]


def precision_for(precision: str, parameters: int, device: torch.device) -> str:
    """The precision that "auto" means: the fastest one on a device.

    That is int8 for large models on a CPU made for it, int4 for those that would take more than
    half of its memory, bfloat16 on a cuda device made for that, else float32.
    parameters: weights in the matrices of the model.
    Raises ModelError if int8 is requested and this machine cannot multiply in it.
    """
    # What int4 does not fit, the output matrix for one, is int8.
    has_int8 = has_kernels() or has_onednn_int8()
    if precision in QUANTISED and not has_int8:
        raise ModelError(f"this build of torch cannot multiply in {precision}; choose float32")
    if precision != "auto":
        return precision
    if device.type == "cuda":
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return "bfloat16" if has_bfloat16 else "float32"
    if device.type != "cpu":
        return "float32"
    # Without these instructions a token takes a third longer in int8 than in float32 (measured).
    fast = torch.cpu.get_capabilities().get("avx512_vnni", False)
    fast |= native.kernels().level not in ("", "baseline")
    if not has_int8 or not fast or parameters < _INT8_FROM:
        return "float32"
    return "int4" if parameters > _COMFORTABLE * machine_memory().total else "int8"


def has_kernels() -> bool:
    """Whether the native kernels multiply; torch does where they cannot be compiled."""
    return native.kernels().library is not None


def layout(precision: str) -> str:
    """What the order of the numbers of a rounded matrix depends on."""
    return "tiles" if has_kernels() else int4_order() if precision == "int4" else ""


def is_matrix(name: str, tensor: Tensor) -> bool:
    """Whether a tensor of a decoder is the matrix of a linear layer, not an embedding or biases.

    The scales of one in int4 count as well: there are many.
    """
    is_looked_up = name.startswith(("embed.", "positions."))
    return tensor.ndim >= 2 and not is_looked_up and "biases." not in name


def to_bfloat16(weights: NamedTensors) -> Weights:
    """Matrices and the token embedding, which may be the output matrix as well, in bfloat16."""
    return {
        name: tensor.to(torch.bfloat16)
        if is_matrix(name, tensor) or name == "embed.weight"
        else tensor
        for name, tensor in weights
    }


def quantised(weights: NamedTensors, precision: str) -> Weights:
    """Each matrix in int8 or int4 with its scales; the output matrix apart from the embedding.

    The output matrix is int8 in both: rounded to four bits, it does the most harm.

    The token embedding, of which a token needs only one row, is in float16 if that can hold it.
    Matrices are rounded one by one, so that few unrounded ones are in memory. A matrix that is
    already stored in four bits, as uint8, is used unchanged as int4.
    """
    rounded: Weights = {}
    for name, tensor in weights:
        is_product = is_matrix(name, tensor) and name != "head.weight"
        to_int4 = precision == "int4" and is_product and fits_int4(tensor)
        if tensor.dtype == torch.uint8 and not to_int4:
            tensor = to_float(tensor)
        if is_matrix(name, tensor):
            rounded |= _rounded(name, tensor, to_int4=to_int4)
        else:
            rounded[name] = tensor
    embedding = rounded["embed.weight"]
    if "head.weight" not in rounded:
        rounded |= _rounded("head.weight", embedding, to_int4=False)
    half = embedding.half()
    if half.isfinite().all():
        rounded["embed.weight"] = half
    return rounded


def _rounded(name: str, matrix: Tensor, *, to_int4: bool) -> Weights:
    """A matrix in int8 or int4 with its scales, as what multiplies here takes it."""
    if has_kernels():
        if matrix.dtype != torch.uint8 and matrix.shape[1] % 2:
            return {name: matrix}  # tiles are of pairs of columns
        weight, scale = int4_tiles(matrix) if to_int4 else int8_tiles(matrix)
    elif matrix.dtype == torch.uint8:
        weight, scale = pack_int4(matrix)
    else:
        weight, scale = quantise_int4(matrix) if to_int4 else quantise(matrix)
    return {name: weight, f"{name}.scale": scale}
