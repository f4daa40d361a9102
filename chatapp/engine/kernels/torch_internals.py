"""Interfaces of torch that it does not document, checked on torch 2.13.

Invariant: nothing else in this program uses one, so that a new release of torch has one file to be
checked against. Each is what torch's own compiler calls on a CPU.
"""

from functools import cache

import torch
from torch import Tensor


def has_onednn() -> bool:
    """Whether this build of torch has oneDNN, Intel's matrix products for CPUs."""
    return bool(torch._C._has_mkldnn)


def has_onednn_int8() -> bool:
    """Whether oneDNN multiplies in int8 here."""
    return has_onednn() and hasattr(torch.ops.onednn, "qlinear_prepack")


@cache
def onednn_int8_takes_eight_bits() -> bool:
    """Whether oneDNN's int8 products are exact here for activations of all eight bits.

    CPUs without VNNI instructions add pairs of products in 16 bits, and what does not fit there
    is cut: 2 · 255 · 127 is too large, 2 · 127 · 127 is not. Tried, not read from a list of
    CPUs: which instructions are taken is oneDNN's own choice.
    """
    weight = torch.full((64, 64), 127, dtype=torch.int8)
    packed, ones, zeros = prepack_int8(weight), torch.ones(64), torch.zeros(64)
    for rows in (1, 16):
        x = torch.full((rows, 64), 255, dtype=torch.uint8)
        if not (onednn_int8_linear(x, packed, ones, zeros.int(), zeros) == 255 * 127 * 64).all():
            return False
    return True


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


def int4_order() -> str:
    """What the order of the numbers that `prepack_int4` gives depends on."""
    return f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}"


def prepack_int4(weight: Tensor) -> Tensor:
    """A matrix (out, in) of the numbers 0 to 15 in the order that `int4_linear` reads it in.

    out: a multiple of 16. Returns (out, in / 2), uint8.
    """
    # In slices of rows: it takes int32, eight times as large as what it gives. A multiple of 64 is
    # packed as the whole would be.
    slices = torch.split(weight, 1024)
    return torch.cat(
        [torch._convert_weight_to_int4pack_for_cpu(rows.to(torch.int32), 1) for rows in slices]
    )


def int4_linear(x: Tensor, packed: Tensor, group: int, scale_and_zero: Tensor) -> Tensor:
    """x Wᵀ with W = scale · (weight - 8) + zero, all in bfloat16.

    x: (rows, in). packed: of `prepack_int4`. group: how many weights of a row share a scale.
    scale_and_zero: (in / group, out, 2).
    """
    return torch._weight_int4pack_mm_for_cpu(x, packed, group, scale_and_zero)


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
