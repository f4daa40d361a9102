"""A base model whose matrices stay in int8 or int4 while an adapter on it learns, on any device.

y = x Wᵀ + b, where W is made from its numbers for each product, and again for the gradient of x, so
that only one matrix at a time is in floating point (as in QLoRA, Dettmers et al. 2023).

Invariant: matrices are rounded as they are for a chat in the same precision.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from chatapp.engine.kernels.rounding import GROUP, group_scales, quantise, rounded_groups


class RoundedLinear(nn.Linear):
    """A linear layer with frozen weights in int8, or in int4, two in a byte.

    matrix: (out, in). bias: (out,) or None. In rows that are no whole number of groups, int4 is
    int8.
    """

    scale: Tensor
    least: Tensor | None

    def __init__(self, matrix: Tensor, bias: nn.Parameter | None, precision: str) -> None:
        nn.Module.__init__(self)  # without the weights in floating point
        self.out_features, self.in_features = matrix.shape
        least, matrix = None, matrix.float()
        if precision == "int4" and self.in_features % GROUP == 0:
            groups = matrix.reshape(self.out_features, -1, GROUP)
            least, scale = group_scales(groups)
            pairs = rounded_groups(groups, least, scale).byte().view(self.out_features, -1, 2)
            numbers = pairs[..., 0] | pairs[..., 1] << 4
            least, scale = least.bfloat16(), scale.bfloat16()
        else:
            numbers, scale = quantise(matrix)
        self.weight = nn.Parameter(numbers, requires_grad=False)
        self.register_buffer("scale", scale)
        self.register_buffer("least", least)
        self.register_parameter("bias", bias)

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """The weights (out, in) in floating point."""
        if self.least is None:
            return self.weight.to(dtype) * self.scale[:, None].to(dtype)
        matrix = torch.empty(self.out_features, self.in_features, device=self.weight.device)
        pairs = matrix.view(*self.weight.shape, 2)
        pairs[..., 0], pairs[..., 1] = self.weight & 15, self.weight >> 4
        matrix.view(self.out_features, -1, GROUP).mul_(self.scale).add_(self.least)
        return matrix.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        device = x.device.type
        if torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))
        y: Tensor = _Product.apply(x, self)  # type: ignore[no-untyped-call]
        return y if self.bias is None else y + self.bias.to(y.dtype)


class _Product(torch.autograd.Function):
    """x Wᵀ, whose gradient makes W anew in place of keeping it."""

    @staticmethod
    def forward(context: Any, x: Tensor, layer: RoundedLinear) -> Tensor:
        context.layer = layer
        return F.linear(x, layer.matrix(x.dtype))

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ context.layer.matrix(gradient.dtype), None


class _Room:
    """Memory for tensors that stay, in one piece.

    Between floats that come and go, they would leave gaps in which no other matrix finds place.
    """

    def __init__(self, size: int) -> None:
        self._bytes, self._used = torch.empty(size, dtype=torch.uint8), 0

    def copy(self, tensor: Tensor) -> Tensor:
        size = tensor.numel() * tensor.element_size()
        place = self._bytes[self._used : self._used + size].view(tensor.dtype).view(tensor.shape)
        self._used += -(-size // 16) * 16
        return place.copy_(tensor)


class RoundedBase:
    """Rounds the matrices of a model's layers, except the output matrix.

    whole: names of modules that learn themselves.
    """

    def __init__(self, precision: str, whole: Collection[str]) -> None:
        self._precision, self._whole = precision, whole
        self._taken: dict[str, RoundedLinear] = {}
        self._room: _Room | None = None

    def take(self, empty: Any, name: str, tensor: Tensor) -> bool:
        """Round a tensor while its model is read, if it is such a matrix; see `Take`."""
        layer, _, kind = name.rpartition(".")
        if kind != "weight" or not self._rounds(empty, layer):
            return False
        if self._room is None:  # two bytes a weight are enough, and take memory once they are used
            self._room = _Room(2 * sum(weight.numel() for weight in empty.parameters()))
        rounded = self._rounded(empty.get_submodule(layer), tensor)
        for part in (rounded.weight, *rounded.buffers()):
            part.data = self._room.copy(part.data)
        self._taken[layer] = rounded
        return True

    def round(self, model: Any) -> None:
        """Give a model the matrices that were taken, and round the others."""
        for name, layer in list(model.named_modules()):
            if self._rounds(model, name):
                rounded = self._taken.pop(name, None) or self._rounded(layer, layer.weight.detach())
                rounded.bias = layer.bias
                model.set_submodule(name, rounded)

    def _rounds(self, model: Any, name: str) -> bool:
        layer = model.get_submodule(name)
        is_whole = any(part in self._whole for part in name.split("."))
        is_head = layer is model.get_output_embeddings()
        return isinstance(layer, nn.Linear | Conv1D) and not is_head and not is_whole

    def _rounded(self, layer: nn.Module, matrix: Tensor) -> RoundedLinear:
        matrix = matrix.t() if isinstance(layer, Conv1D) else matrix
        return RoundedLinear(matrix, None, self._precision)
