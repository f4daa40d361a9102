"""The seam for linear layers: what multiplies by a weight matrix goes through here.

Invariant: a layer takes float32 (rows, in) and returns float32 (rows, out), whatever its weights
are stored as. The type and shape of the stored weights alone decide how it multiplies.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from chatapp.engine.kernels.native import OUTPUTS, kernels
from chatapp.engine.kernels.native_layers import FEW_ROWS, NativeLinear, float_struct, multiply
from chatapp.engine.kernels.rounding import GROUP
from chatapp.engine.kernels.torch_internals import has_onednn, onednn_linear
from chatapp.engine.kernels.torch_layers import Int4Linear, Int8Linear

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
