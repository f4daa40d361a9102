"""The seam for linear layers: what multiplies by a weight matrix goes through here, and what a
model's matrices are stored as: the choice, and the conversions.

Invariant: a layer takes float32 (rows, in) and returns float32 (rows, out), whatever its weights
are stored as. The type and shape of the stored weights alone decide how it multiplies.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from chatapp.engine.errors import ModelError
from chatapp.engine.kernels import native
from chatapp.engine.kernels.machine import machine_memory
from chatapp.engine.kernels.native import OUTPUTS, kernels
from chatapp.engine.kernels.native_layers import FEW_ROWS, NativeLinear, float_struct, multiply
from chatapp.engine.kernels.rounding import GROUP, int4_tiles, int8_tiles, quantise, to_float
from chatapp.engine.kernels.torch_internals import (
    has_onednn,
    has_onednn_int8,
    int4_order,
    onednn_linear,
)
from chatapp.engine.kernels.torch_layers import Int4Linear, Int8Linear, pack_int4, quantise_int4

# oneDNN multiplies a single row up to twice as fast as the BLAS behind F.linear, which uses
# one thread for it; below some size its cost a call is higher than what it saves. Of several rows
# its sums are less exact: with them, logits of SmolLM2 were 1e-4 off, and half of that by F.linear.
_ONEDNN_FROM = 2**19

Layer = Callable[[Tensor], Tensor]


class Linear:
    """y = x Wᵀ + b in float32.

    weight: (out, in), contiguous. bias: (out,) or None.
    """

    __slots__ = ("_by_onednn", "_library", "bias", "struct", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self.struct = float_struct(weight, bias)
        is_on_cpu = weight.device.type == "cpu"
        self._library = kernels().library if is_on_cpu else None
        self._by_onednn = is_on_cpu and weight.numel() >= _ONEDNN_FROM and has_onednn()

    def __call__(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            return F.linear(x, self.weight, self.bias)
        if self._library is not None and x.numel() <= FEW_ROWS * x.shape[-1]:
            return multiply(self._library, self.struct, x)
        by_torch = onednn_linear if self._by_onednn and len(x) == 1 else F.linear
        return by_torch(x, self.weight, self.bias)


class BFloat16Linear:
    """y = x Wᵀ + b with x and W rounded to bfloat16, and so is the sum with a bias.

    Without a bias (the output matrix) the result is the float32 sum, if torch can return that:
    rounding would change logits of some tens by as much as they differ.
    """

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = None if bias is None else bias.to(torch.bfloat16)

    def __call__(self, x: Tensor) -> Tensor:
        x = x.to(torch.bfloat16)
        if self.bias is None and x.is_cuda and torch.version.hip is None:
            return torch.mm(x, self.weight.t(), out_dtype=torch.float32)
        return F.linear(x, self.weight, self.bias).float()


def fits_int4(weight: Tensor) -> bool:
    """Whether a matrix (out, in), or one of four bits already, has the shape for int4."""
    in_groups = weight.dtype == torch.uint8 or weight.shape[1] % GROUP == 0
    return len(weight) % 16 == 0 and in_groups


def linear_layer(weights: Mapping[str, Tensor], name: str, outputs: int | None = None) -> Layer:
    """The layer of the matrix `name`.weight, with `name`.bias if there is one.

    If it is int8, or four bits in uint8, `name`.weight.scale holds its scales; of more than two
    dimensions, it is in tiles, of which `outputs` are wanted, all by default.
    """
    weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    scale = weights.get(f"{name}.weight.scale")
    if scale is not None and weight.ndim > 2:
        rows = len(scale) if scale.ndim == 1 else len(weight) * OUTPUTS
        return NativeLinear(weight, scale, bias, outputs or rows)
    if weight.dtype == torch.int8 and scale is not None:
        return Int8Linear(weight, scale, bias)
    if weight.dtype == torch.uint8 and scale is not None:
        return Int4Linear(weight, scale, bias)
    if weight.dtype == torch.bfloat16:
        return BFloat16Linear(weight, bias)
    return Linear(weight, bias)


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
