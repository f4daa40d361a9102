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
from chatapp.engine.kernels.native_layers import (
    FEW_ROWS,
    NativeLinear,
    float_struct,
    halves,
    multiply,
)
from chatapp.engine.kernels.rounding import (
    GROUP,
    group_scales,
    int4_tiles,
    int8_tiles,
    parts_of,
    quantise,
    rounded_groups,
    to_float,
)
from chatapp.engine.kernels.torch_internals import (
    has_onednn,
    has_onednn_int8,
    int4_linear,
    int4_order,
    int8_matmul,
    onednn_int8_linear,
    onednn_int8_takes_eight_bits,
    onednn_linear,
    prepack_int4,
    prepack_int8,
)

# A single row is multiplied by torch's own integer product up to this many weights: it has next
# to no cost a call, where oneDNN has 20 µs. On larger matrices oneDNN reads faster.
_DOT_BELOW = 2**24

# How many times its root mean square the largest activation of a row may be before the row is
# rounded twice.
_PEAK = 8.0


class Int8Linear:
    """y = x Wᵀ + b with int8 weights, one scale a row, and activations rounded row by row.

    weight: (out, in), int8. scale: (out,), so that W ≈ scale · weight.

    oneDNN's fast kernels take unsigned activations. So a row x with the largest
    magnitude m becomes u = round(127 x / m) + 128, and with exact integer products

        x Wᵀ ≈ m · (scale / 127) · (u weightᵀ − 128 · Σ weight)

    Where a single row is multiplied without oneDNN, it is u − 128, with the same result.

    Of a row with a few large activations, as in Llama and its heirs (Dettmers et al. 2022), this
    leaves little of all others. The rounding error of such a row is rounded in turn, to 1/254
    of the step, and multiplied as well. Measured on SmolLM2-135M and WikiText-2, perplexity
    rises by 4 % without (2,048 tokens) and by 0.2 % with it (5,742 tokens).

    Where oneDNN's products are exact for seven bits only, 63 and 64 replace 127 and 128, and
    every row is rounded twice.
    """

    __slots__ = (
        *("_bias", "_columns", "_finer", "_levels", "_offset"),
        *("_packed", "_peak", "_scale", "_shift", "_zeros"),
    )

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        eight_bits = onednn_int8_takes_eight_bits()
        levels = 127 if eight_bits else 63
        self._packed = prepack_int8(weight)
        # Where oneDNN is not exact, the other product is not, or takes a loop.
        by_dot = eight_bits and weight.numel() < _DOT_BELOW
        self._columns = weight.t() if by_dot else None
        self._scale = scale / levels
        # In slices of rows: a sum makes an int32 copy of what it sums, four times as large.
        sums = torch.cat([rows.sum(1, dtype=torch.int32) for rows in torch.split(weight, 4096)])
        self._offset = sums * self._scale * -(levels + 1)
        self._zeros = torch.zeros(len(weight), dtype=torch.int32)
        self._bias = bias
        # Of the length of a row.
        self._peak = _PEAK / weight.shape[1] ** 0.5 if eight_bits else 0.0
        self._levels = torch.tensor(float(levels))
        self._finer = 2.0 * levels  # what rounding takes is half a step at most
        self._shift = -128 if eight_bits else 64

    def __call__(self, x: Tensor) -> Tensor:
        if self._columns is not None and len(x) == 1:
            y = self._row(x, self._columns)
        else:
            y = self._rows(x)
        return y if self._bias is None else y.add_(self._bias)

    def _rows(self, x: Tensor) -> Tensor:
        # In a row of zeros, 0 / 0 becomes some integer, which is multiplied by 0 in the end.
        # Along rows, torch's largest and smallest take a tenth of its largest magnitude's time.
        largest = torch.maximum(x.amax(-1, keepdim=True), x.amin(-1, keepdim=True).neg_())
        peak = torch.linalg.vector_norm(x, dim=-1, keepdim=True).mul_(self._peak)
        peaked = (largest > peak)[:, 0].nonzero()[:, 0]
        rest = x * torch.div(self._levels, largest)
        if not len(peaked):
            return self._by_onednn(rest.round_().char()).mul_(largest)
        rounded = rest.round()
        rest = rest.sub_(rounded) if len(peaked) == len(x) else rest[peaked] - rounded[peaked]
        rows = torch.empty(len(x) + len(peaked), x.shape[1], dtype=torch.int8)
        rows[: len(x)] = rounded
        rows[len(x) :] = rest.mul_(self._finer).round_()
        y = self._by_onednn(rows)
        y, finer = y[: len(x)], y[len(x) :]
        y.index_add_(0, peaked, finer, alpha=1 / self._finer)
        return y.mul_(largest)

    def _row(self, x: Tensor, columns: Tensor) -> Tensor:
        """The same of a single row, with numbers in place of small tensors: a call of torch costs
        more here than what it computes.
        """
        largest = float(torch.linalg.vector_norm(x, torch.inf))
        is_peaked = largest > self._peak * float(torch.linalg.vector_norm(x))
        rest = x * (127 / (largest or 1.0))
        if not is_peaked:
            y = int8_matmul(rest.round_().char(), columns)
        else:
            rounded = rest.round()
            finer = int8_matmul(rest.sub_(rounded).mul_(self._finer).round_().char(), columns)
            y = finer.mul(1 / self._finer).add_(int8_matmul(rounded.char(), columns))
        return (y * self._scale).mul_(largest)

    def _by_onednn(self, rounded: Tensor) -> Tensor:
        # In eight bits, -128 is 128; torch has no fast way from float32 to uint8.
        unsigned = rounded.add_(self._shift).view(torch.uint8)
        return onednn_int8_linear(unsigned, self._packed, self._scale, self._zeros, self._offset)


class Int4Linear:
    """y = x Wᵀ + b with weights of four bits; x, scales, zeros and products are bfloat16.

    weight: (out, in / 2), as `prepack_int4` gives it. scale: (groups, out, 2), of each
        `GROUP` inputs the scale s and the zero z, so that W ≈ s · (weight - 8) + z.
    """

    __slots__ = ("_bias", "_packed", "_scale")

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        self._packed, self._scale, self._bias = weight, scale, bias

    def __call__(self, x: Tensor) -> Tensor:
        y = int4_linear(x.to(torch.bfloat16), self._packed, GROUP, self._scale).float()
        return y if self._bias is None else y.add_(self._bias)


def quantise_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix (out, in) as an `Int4Linear` takes it; a group's least becomes 0, its largest 15."""
    groups = weight.reshape(len(weight), -1, GROUP)
    least, scale = group_scales(groups)
    zero = (least + 8 * scale).bfloat16().float()
    return _packed(rounded_groups(groups, zero - 8 * scale, scale), scale, zero)


def pack_int4(groups: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix of four bits as an `Int4Linear` takes it; see rounding.py."""
    return _packed(*parts_of(groups))


def _packed(numbers: Tensor, scale: Tensor, zero: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.cat((scale, zero), 2).transpose(0, 1).bfloat16().contiguous()
    return prepack_int4(numbers.flatten(1)), both


# oneDNN multiplies a single row up to twice as fast as the BLAS behind F.linear, which uses
# one thread for it; below some size its cost a call is higher than what it saves. Of several rows
# its sums are less exact: with them, logits of SmolLM2 were 1e-4 off, and half of that by F.linear.
_ONEDNN_FROM = 2**19

Layer = Callable[[Tensor], Tensor]


class Linear:
    """y = x Wᵀ + b in float32.

    weight: (out, in), contiguous. bias: (out,) or None.
    """

    __slots__ = ("_by_onednn", "_half", "_library", "bias", "struct", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        is_on_cpu = weight.device.type == "cpu"
        self._library = kernels().library if is_on_cpu else None
        self._half = None if self._library is None else halves(self._library, weight)
        self.struct = float_struct(weight if self._half is None else self._half, bias)
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
