"""A matrix of four bits on its way from a file to int4: rows of groups, as bytes.

Keep: a row of the matrix is a row of bytes, so that what orders or stacks rows need not know.
Free of torch until a matrix is taken apart.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

# Weights of a row that share a scale, as in most files of four bits.
GROUP = 32

Group = np.dtype([("numbers", np.uint8, GROUP), ("scale", np.float32), ("zero", np.float32)])
"""32 weights w = scale · (number - 8) + zero, with numbers from 0 to 15."""


def parts_of(groups: "Tensor") -> tuple["Tensor", "Tensor", "Tensor"]:
    """Numbers (out, groups, 32), uint8, scales and zeros (out, groups, 1), float32.

    groups: (out, bytes of a row), uint8.
    """
    import torch

    split = groups.view(len(groups), -1, Group.itemsize)
    scale_and_zero = split[..., GROUP:].contiguous().view(torch.float32)
    return split[..., :GROUP], scale_and_zero[..., :1], scale_and_zero[..., 1:]


def to_float(groups: "Tensor") -> "Tensor":
    """The matrix (out, in) in float32."""
    numbers, scale, zero = parts_of(groups)
    return ((numbers - 8.0) * scale + zero).flatten(1)
