"""Interfaces of torch that it does not document, checked on torch 2.13.

Keep: nothing else in this program uses one, so that a new release of torch has one file to be
checked against. Each is what torch's own compiler calls on a CPU.
"""

import torch
from torch import Tensor


def has_onednn() -> bool:
    """Whether this build of torch has oneDNN, Intel's matrix products for CPUs."""
    return bool(torch._C._has_mkldnn)


def has_onednn_int8() -> bool:
    """Whether oneDNN multiplies in int8 here."""
    return has_onednn() and hasattr(torch.ops.onednn, "qlinear_prepack")


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b in float32. x: (rows, in). weight: (out, in)."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


def int8_matmul(a: Tensor, b: Tensor) -> Tensor:
    """The exact product of two int8 matrices, in int32."""
    return torch._int_mm(a, b)


def prepack_int8(weight: Tensor) -> Tensor:
    """An int8 matrix (out, in) in the order that `onednn_int8_linear` reads it in."""
    packed: Tensor = torch.ops.onednn.qlinear_prepack(weight, [1, weight.shape[1]])
    return packed


def onednn_int8_linear(
    x: Tensor, packed: Tensor, scale: Tensor, zeros: Tensor, bias: Tensor
) -> Tensor:
    """scale · (x weightᵀ) + bias in float32.

    x: (rows, in), uint8. packed: of `prepack_int8`. scale, bias: (out,). zeros: (out,) zeros
    in int32, the zero points of the weights.
    """
    y: Tensor = torch.ops.onednn.qlinear_pointwise(
        x, 1.0, 0, packed, scale, zeros, bias, 1.0, 0, torch.float32, "none", [], ""
    )
    return y
