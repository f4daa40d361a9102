"""How matrices are rounded to int8 and int4, and matrices of four bits on their way from a file.

Invariant: a row of a matrix of four bits is a row of bytes, so that what orders or stacks rows need
not know.
"""

import numpy as np
import torch
from torch import Tensor

GROUP = 32
"""Weights of a row that share a scale, as in most files of four bits."""

Group = np.dtype([("numbers", np.uint8, GROUP), ("scale", np.float32), ("zero", np.float32)])
"""32 weights w = scale · (number - 8) + zero, with numbers from 0 to 15."""

_SMALLEST = torch.finfo(torch.float32).tiny


def parts_of(groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers (out, groups, 32), uint8, scales and zeros (out, groups, 1), float32.

    groups: (out, bytes of a row), uint8.
    """
    split = groups.view(len(groups), -1, Group.itemsize)
    scale_and_zero = split[..., GROUP:].contiguous().view(torch.float32)
    return split[..., :GROUP], scale_and_zero[..., :1], scale_and_zero[..., 1:]


def to_float(groups: Tensor) -> Tensor:
    """The matrix (out, in) in float32."""
    numbers, scale, zero = parts_of(groups)
    return ((numbers - 8.0) * scale + zero).flatten(1)


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix (out, in) as int8 and the scale (out,) of each row, whose largest becomes 127."""
    scale = weight.abs().amax(1).clamp_min_(_SMALLEST) / 127
    # int8 has no NaN: a row that holds one has NaN as its scale, and so as its products.
    rounded = (weight / scale[:, None]).round_().nan_to_num_(0.0)
    return rounded.to(torch.int8), scale


def rounded_groups(groups: Tensor, least: Tensor, scale: Tensor) -> Tensor:
    """Numbers n from 0 to 15 for groups (out, groups, 32): a weight is about least + scale · n."""
    return ((groups - least) / scale).round_().clamp_(0, 15).nan_to_num_(0.0)


def group_scales(groups: Tensor) -> tuple[Tensor, Tensor]:
    """The least weight and the scale of each group, (out, groups, 1), whose largest becomes 15.

    The scale is one that bfloat16 holds, so what it loses is lost before the weights are rounded.
    """
    least, largest = groups.aminmax(dim=2, keepdim=True)
    scale = ((largest - least) / 15).clamp_min_(_SMALLEST)
    return least, scale.bfloat16().float().clamp_min_(_SMALLEST)
