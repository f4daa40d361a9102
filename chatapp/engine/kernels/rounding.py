"""How matrices are rounded to int8 and int4, in rows and in the tiles that the kernels multiply.

Invariants: a row of a matrix of four bits is a row of bytes, so that what orders or stacks rows
need not know. A tensor of tiles (see kernels.c) is what is kept on disk and mapped into memory.
"""

import numpy as np
import torch
from torch import Tensor

from chatapp.engine.kernels.native import INT4, INT8, OUTPUTS

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


def pack_int8(weight: Tensor) -> Tensor:
    """(out, in) int8 -> (tiles, in / 2, 16, 2) int8; in must be even, rows are padded with 0."""
    padded = _padded(weight)
    tiles = padded.view(-1, OUTPUTS, weight.shape[1] // 2, 2)
    return tiles.permute(0, 2, 1, 3).contiguous()


def pack_int4(numbers: Tensor) -> Tensor:
    """(out, in) of numbers from 0 to 15 -> (tiles, in / 4, 32) uint8, two numbers a byte."""
    padded = _padded(numbers.to(torch.uint8))
    # (tiles, 16, in / 4, 2 pairs, 2) -> (tiles, in / 4, 2 pairs, 16, 2)
    pairs = padded.view(-1, OUTPUTS, numbers.shape[1] // 4, 2, 2).permute(0, 2, 3, 1, 4)
    first, second = pairs.flatten(3).unbind(2)
    return (first | (second << 4)).contiguous()


def int8_tiles(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix (out, in) in float32 as tiles, and the scale (out,) of each row."""
    numbers, scale = quantise(weight)
    return pack_int8(numbers), scale


def int4_tiles(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix (out, in) in float32, or in four bits already, as tiles and their scales.

    The least weight of a group becomes 0, its largest 15. What comes in four bits stays.
    """
    if weight.dtype == torch.uint8:
        numbers, scale, zero = parts_of(weight)
        least = zero - 8 * scale
    else:
        groups = weight.reshape(len(weight), -1, GROUP)
        least, scale = group_scales(groups)
        least = least.bfloat16().float()
        numbers = rounded_groups(groups, least, scale)
    return pack_int4(numbers.flatten(1)), pack_scales(scale[..., 0], least[..., 0])


def pack_scales(scale: Tensor, least: Tensor) -> Tensor:
    """(out, groups) twice, in float32 -> (tiles, groups, 2, 16) bfloat16."""
    both = torch.stack([_padded(scale), _padded(least)], 2)  # (out, groups, 2)
    return both.view(-1, OUTPUTS, *both.shape[1:]).permute(0, 2, 3, 1).bfloat16().contiguous()


def kind_of(tiles: Tensor) -> int:
    """INT8 or INT4, by the type of the tiles."""
    return INT8 if tiles.dtype == torch.int8 else INT4


def _padded(rows: Tensor) -> Tensor:
    missing = -len(rows) % OUTPUTS
    return (
        torch.cat([rows, rows.new_zeros(missing, rows.shape[1])]) if missing else rows.contiguous()
    )
