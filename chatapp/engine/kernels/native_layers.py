"""Layers that the native kernels compute: a product, and a whole block for a few rows.

Invariant: a block gives what its parts give one by one, up to the order of sums; tests hold both
equal.
"""

import ctypes
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chatapp.engine.kernels import native
from chatapp.engine.kernels.tiles import kind_of
from chatapp.engine.kernels.token_threads import token_threads

FEW_ROWS = 16
"""Up to this many rows, a float32 block is computed natively on every instruction set."""

_TOKENS = 2
"""Rows that are limited by the memory's speed."""

NO_NORM = native.Norm(None, None, 0.0)
"""Stands where a block has none."""

KINDS = {"gelu_new": 0, "gelu_pytorch_tanh": 0, "gelu": 1, "relu": 2, "silu": 3}
"""The activations in kernels.c."""


class NativeLinear:
    """y = x Wᵀ + b with int8 or int4 weights in tiles, and activations rounded once to int16.

    weight: see `tiles`. scale: (out,) of int8, (tiles, groups, 2, 16) of int4. outputs: how many
        there are; rows that only pad a tile are none.
    """

    __slots__ = ("_kept", "_library", "struct")

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None, outputs: int) -> None:
        library = native.kernels().library
        assert library is not None, "tiles are made only where there are kernels"
        self._library = library
        kind = kind_of(weight)
        inputs = weight.shape[1] * (2 if kind == native.INT8 else 4)
        self._kept = (weight, scale, bias)
        addresses = (None if part is None else part.data_ptr() for part in self._kept)
        self.struct = native.Linear(kind, inputs, outputs, *addresses)

    def __call__(self, x: Tensor) -> Tensor:
        return multiply(self._library, self.struct, x)


def multiply(library: ctypes.CDLL, layer: native.Linear, x: Tensor) -> Tensor:
    """The product (…, out) of states (…, in)."""
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    y = torch.empty(len(rows), layer.outputs)
    of = ctypes.byref(layer)
    room = torch.empty(library.linear_room(of, len(rows)), dtype=torch.uint8)
    choose_threads(library, len(rows))
    library.apply_linear(of, rows.data_ptr(), y.data_ptr(), len(rows), room.data_ptr())
    return y.view(*x.shape[:-1], -1)


def choose_threads(library: ctypes.CDLL, rows: int) -> None:
    """Many rows, limited by computing, get all threads of torch; for a few see `token_threads`."""
    most = torch.get_num_threads()
    library.set_threads(most if most < 2 or rows > _TOKENS else token_threads(most))


def float_struct(weight: Tensor, bias: Tensor | None) -> native.Linear:
    """A product with float32 weights (out, in), for a block."""
    outputs, inputs = weight.shape
    address = None if bias is None else bias.data_ptr()
    return native.Linear(native.FLOAT32, inputs, outputs, weight.data_ptr(), None, address)


@dataclass(frozen=True, slots=True)
class Rows:
    """The tokens of a pass that blocks compute natively, one a row.

    at: their positions, int32. span: one more than the largest position. turns: by rotation,
    cosines and sines (rows, size / 2). held: for each layer the buffer of keys and
    values, (2, sequences, key/value heads, positions, head size). is_batch: whether each row
    belongs to another sequence; otherwise all belong to the first.
    """

    at: Tensor
    span: int
    turns: Mapping[Any, tuple[Tensor, Tensor]]
    held: tuple[Tensor, ...]
    is_batch: bool


class NativeBlock:
    """A block of a decoder.

    struct: its parts, which point into tensors of the decoder's block. rotation: what turns its
    queries and keys; None where nothing does. most_rows: of which it is faster than torch.
    """

    __slots__ = ("_layer", "_library", "_rotation", "_struct", "most_rows")

    def __init__(self, struct: native.Block, layer: int, rotation: Any) -> None:
        library = native.kernels().library
        assert library is not None
        self._library, self._struct, self._layer = library, struct, layer
        self._rotation = rotation
        # Of 64 to 512 rows in float32, measured on Zen 5: 80 to 90 thousand million products a
        # second with AVX-512, 40 with AVX2 and 20 with SSE2, where torch's BLAS has 38 to 50. With
        # integers there is no other way, and none was faster (prompt of 512, SmolLM2: 0.53 s of
        # one core in int8, 0.60 in int4; by torch's products 0.67 and 0.96).
        is_float = struct.expand.kind == native.FLOAT32
        is_slower = is_float and native.kernels().level != "avx512"
        self.most_rows = FEW_ROWS if is_slower else sys.maxsize

    def add_to(self, x: Tensor, rows: Rows) -> None:
        """Add to the states x (rows, width), in place, what the block adds to them."""
        held, struct, library = rows.held[self._layer], self._struct, self._library
        keys, attention = held.data_ptr(), struct.attention
        attention.keys, attention.values = keys, keys + held.stride(0) * 4
        attention.row = held.stride(1) if rows.is_batch else 0
        attention.head = held.stride(2)
        cosines = sines = 0
        if self._rotation is not None:
            turns = rows.turns[self._rotation]
            cosines, sines = turns[0].data_ptr(), turns[1].data_ptr()
        block = ctypes.byref(struct)
        choose_threads(library, len(x))
        room = torch.empty(library.block_room(block, len(x), rows.span), dtype=torch.uint8)
        library.apply_block(
            block,
            x.data_ptr(),
            len(x),
            rows.at.data_ptr(),
            rows.span,
            cosines,
            sines,
            room.data_ptr(),
        )
