"""The seam for linear layers: what multiplies by a weight matrix goes through here.

Keep: a layer is called with (…, in) and returns (…, out), whatever its weights are stored as.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

# oneDNN multiplies a single row up to twice as fast as the BLAS behind F.linear, which uses
# one thread for it; below some size its cost a call is higher than what it saves. Not every
# build of torch has it.
_ONEDNN_FROM = 2**19 if torch._C._has_mkldnn else float("inf")


class Linear:
    """y = x Wᵀ + b in float32.

    weight: (out, in), contiguous. bias: (out,) or None.
    """

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        if self.weight.numel() < _ONEDNN_FROM:
            return F.linear(x, self.weight, self.bias)
        multiply = torch.ops.mkldnn._linear_pointwise
        y: Tensor = multiply(x, self.weight, self.bias, "none", [], "")
        return y
