"""The seam for linear layers: what multiplies by a weight matrix goes through here.

Keep: a layer is called with (…, in) and returns (…, out), whatever its weights are stored as.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

# oneDNN multiplies a single row about twice as fast as the BLAS behind F.linear, which uses
# one thread for it. Builds of torch without oneDNN have F.linear alone.
_ONEDNN = torch._C._has_mkldnn


class Linear:
    """y = x Wᵀ + b in float32.

    weight: (out, in), contiguous. bias: (out,) or None.
    """

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        if _ONEDNN:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self.weight, self.bias, "none", [], ""
            )
            return y
        return F.linear(x, self.weight, self.bias)
