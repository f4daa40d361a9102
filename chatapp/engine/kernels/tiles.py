"""Matrices of integers in tiles, as the native kernels multiply them; see kernels.c.

Invariant: a tensor of tiles is what is kept on disk and mapped into memory; nothing is packed
twice.
"""

import torch
from torch import Tensor

from chatapp.engine.kernels.native import INT4, INT8, OUTPUTS
from chatapp.engine.kernels.rounding import GROUP, group_scales, parts_of, quantise, rounded_groups


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
