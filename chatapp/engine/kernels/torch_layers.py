"""Products with int8 and int4 weights by torch, for machines without the native kernels."""

import torch
from torch import Tensor

from chatapp.engine.kernels.rounding import GROUP, group_scales, parts_of, rounded_groups
from chatapp.engine.kernels.torch_internals import (
    int4_linear,
    int8_matmul,
    onednn_int8_linear,
    onednn_int8_takes_eight_bits,
    prepack_int4,
    prepack_int8,
)

# A single row is multiplied by torch's own integer product up to this many weights: it has next
# to no cost a call, where oneDNN has 20 µs. On larger matrices oneDNN reads faster.
_DOT_BELOW = 2**24

# How many times its root mean square the largest activation of a row may be before the row is
# rounded twice.
_PEAK = 8.0


class Int8Linear:
    """y = x Wᵀ + b with int8 weights, one scale a row, and activations rounded row by row.

    weight: (out, in), int8. scale: (out,), so that W ≈ scale · weight.

    oneDNN's fast kernels take unsigned activations. So a row x with the largest
    magnitude m becomes u = round(127 x / m) + 128, and with exact integer products

        x Wᵀ ≈ m · (scale / 127) · (u weightᵀ − 128 · Σ weight)

    Where a single row is multiplied without oneDNN, it is u − 128, with the same result.

    Of a row with a few large activations, as in Llama and its heirs (Dettmers et al. 2022), this
    leaves little of all others. The rounding error of such a row is rounded in turn, to 1/254
    of the step, and multiplied as well. Measured on SmolLM2-135M and WikiText-2, perplexity
    rises by 4 % without (2,048 tokens) and by 0.2 % with it (5,742 tokens).

    Where oneDNN's products are exact for seven bits only, 63 and 64 replace 127 and 128, and
    every row is rounded twice.
    """

    __slots__ = (
        *("_bias", "_columns", "_finer", "_levels", "_offset"),
        *("_packed", "_peak", "_scale", "_shift", "_zeros"),
    )

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        eight_bits = onednn_int8_takes_eight_bits()
        levels = 127 if eight_bits else 63
        self._packed = prepack_int8(weight)
        # Where oneDNN is not exact, the other product is not, or takes a loop.
        by_dot = eight_bits and weight.numel() < _DOT_BELOW
        self._columns = weight.t() if by_dot else None
        self._scale = scale / levels
        # In slices of rows: a sum makes an int32 copy of what it sums, four times as large.
        sums = torch.cat([rows.sum(1, dtype=torch.int32) for rows in torch.split(weight, 4096)])
        self._offset = sums * self._scale * -(levels + 1)
        self._zeros = torch.zeros(len(weight), dtype=torch.int32)
        self._bias = bias
        # Of the length of a row.
        self._peak = _PEAK / weight.shape[1] ** 0.5 if eight_bits else 0.0
        self._levels = torch.tensor(float(levels))
        self._finer = 2.0 * levels  # what rounding takes is half a step at most
        self._shift = -128 if eight_bits else 64

    def __call__(self, x: Tensor) -> Tensor:
        if self._columns is not None and len(x) == 1:
            y = self._row(x, self._columns)
        else:
            y = self._rows(x)
        return y if self._bias is None else y.add_(self._bias)

    def _rows(self, x: Tensor) -> Tensor:
        # In a row of zeros, 0 / 0 becomes some integer, which is multiplied by 0 in the end.
        # Along rows, torch's largest and smallest take a tenth of its largest magnitude's time.
        largest = torch.maximum(x.amax(-1, keepdim=True), x.amin(-1, keepdim=True).neg_())
        peak = torch.linalg.vector_norm(x, dim=-1, keepdim=True).mul_(self._peak)
        peaked = (largest > peak)[:, 0].nonzero()[:, 0]
        rest = x * torch.div(self._levels, largest)
        if not len(peaked):
            return self._by_onednn(rest.round_().char()).mul_(largest)
        rounded = rest.round()
        rest = rest.sub_(rounded) if len(peaked) == len(x) else rest[peaked] - rounded[peaked]
        rows = torch.empty(len(x) + len(peaked), x.shape[1], dtype=torch.int8)
        rows[: len(x)] = rounded
        rows[len(x) :] = rest.mul_(self._finer).round_()
        y = self._by_onednn(rows)
        y, finer = y[: len(x)], y[len(x) :]
        y.index_add_(0, peaked, finer, alpha=1 / self._finer)
        return y.mul_(largest)

    def _row(self, x: Tensor, columns: Tensor) -> Tensor:
        """The same of a single row, with numbers in place of small tensors: a call of torch costs
        more here than what it computes.
        """
        largest = float(torch.linalg.vector_norm(x, torch.inf))
        is_peaked = largest > self._peak * float(torch.linalg.vector_norm(x))
        rest = x * (127 / (largest or 1.0))
        if not is_peaked:
            y = int8_matmul(rest.round_().char(), columns)
        else:
            rounded = rest.round()
            finer = int8_matmul(rest.sub_(rounded).mul_(self._finer).round_().char(), columns)
            y = finer.mul(1 / self._finer).add_(int8_matmul(rounded.char(), columns))
        return (y * self._scale).mul_(largest)

    def _by_onednn(self, rounded: Tensor) -> Tensor:
        # In eight bits, -128 is 128; torch has no fast way from float32 to uint8.
        unsigned = rounded.add_(self._shift).view(torch.uint8)
        return onednn_int8_linear(unsigned, self._packed, self._scale, self._zeros, self._offset)


class Int4Linear:
    """y = x Wᵀ + b with weights of four bits; x, scales, zeros and products are bfloat16.

    weight: (out, in / 2), as `prepack_int4` gives it. scale: (groups, out, 2), of each
        `GROUP` inputs the scale s and the zero z, so that W ≈ s · (weight - 8) + z.
    """

    __slots__ = ("_bias", "_packed", "_scale")

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        self._packed, self._scale, self._bias = weight, scale, bias

    def __call__(self, x: Tensor) -> Tensor:
        y = int4_linear(x.to(torch.bfloat16), self._packed, GROUP, self._scale).float()
        return y if self._bias is None else y.add_(self._bias)


def quantise_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix (out, in) as an `Int4Linear` takes it; a group's least becomes 0, its largest 15."""
    groups = weight.reshape(len(weight), -1, GROUP)
    least, scale = group_scales(groups)
    zero = (least + 8 * scale).bfloat16().float()
    return _packed(rounded_groups(groups, zero - 8 * scale, scale), scale, zero)


def pack_int4(groups: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix of four bits as an `Int4Linear` takes it; see rounding.py."""
    return _packed(*parts_of(groups))


def _packed(numbers: Tensor, scale: Tensor, zero: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.cat((scale, zero), 2).transpose(0, 1).bfloat16().contiguous()
    return prepack_int4(numbers.flatten(1)), both
