"""Layers that the native kernels compute: a product, and the blocks of a decoder.

Invariant: blocks give what their parts give one by one, up to the order of sums; tests hold both
equal.
"""

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chatapp.engine.kernels import native
from chatapp.engine.kernels.measured import token_threads, torch_multiplies_faster
from chatapp.engine.kernels.rounding import kind_of

FEW_ROWS = 16
"""Up to this many rows, float32 blocks are computed natively on every instruction set, and all
blocks in one call."""

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
    x = x.contiguous()
    y, rows, of = (
        torch.empty(*x.shape[:-1], layer.outputs),
        x.numel() // x.shape[-1],
        ctypes.byref(layer),
    )
    room = torch.empty(library.linear_room(of, rows), dtype=torch.uint8)
    choose_threads(library, rows)
    library.apply_linear(of, x.data_ptr(), y.data_ptr(), rows, room.data_ptr())
    return y


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

    at: their positions, int32. span: one more than the largest position. turns: of each rotation,
    cosines and sines (rows, size / 2). held: for each layer the keys and values, (2, sequences,
    key/value heads, positions, head size), in one piece of memory. is_batch: whether each row
    belongs to another sequence; otherwise all belong to the first.
    """

    at: Tensor
    span: int
    turns: Sequence[tuple[Tensor, Tensor]]
    held: tuple[Tensor, ...]
    is_batch: bool


class NativeBlocks:
    """The blocks of a decoder.

    structs: one a block, which point into its tensors. most_rows: of which they are faster than
    torch.
    """

    __slots__ = ("_library", "_structs", "most_rows")

    def __init__(self, structs: Sequence[native.Block]) -> None:
        library = native.kernels().library
        assert library is not None
        self._library = library
        self._structs = (native.Block * len(structs))(*structs)
        # With integers there is no other way, and none was faster (prompt of 512, SmolLM2: 0.53 s
        # of one core in int8, 0.60 in int4; by torch's products 0.67 and 0.96).
        is_float = structs[0].expand.kind == native.FLOAT32
        is_slower = is_float and torch_multiplies_faster(torch.get_num_threads())
        self.most_rows = FEW_ROWS if is_slower else sys.maxsize

    def add_to(
        self, x: Tensor, rows: Rows, raise_if_cancelled: Callable[[], None] | None = None
    ) -> None:
        """Add to the states x (rows, width), in place, what the blocks add to them.

        Few rows go through all blocks in one call, so that between two of them no thread waits for
        Python. raise_if_cancelled: called before each call.
        """
        library, first, size = self._library, rows.held[0], ctypes.sizeof(native.Block)
        keys, layer, values = first.data_ptr(), first.numel(), 4 * first.stride(0)
        row = first.stride(1) if rows.is_batch else 0
        count = x.shape[0]  # len of a tensor takes longer than a call of the library
        positions = rows.at.data_ptr(), count, rows.span
        turned = [part.data_ptr() for turn in rows.turns for part in turn] or [0, 0]
        turns = (ctypes.c_void_p * len(turned))(*turned)
        room = torch.empty(library.block_room(self._structs, *positions[1:]), dtype=torch.uint8)
        blocks = len(self._structs) if count <= FEW_ROWS else 1
        choose_threads(library, count)
        for block in range(0, len(self._structs), blocks):
            if raise_if_cancelled is not None:
                raise_if_cancelled()
            here = keys + 4 * layer * block
            tokens = native.Tokens(here, here + values, row, first.stride(2), *positions)
            library.apply_blocks(
                ctypes.addressof(self._structs) + size * block,
                blocks,
                x.data_ptr(),
                ctypes.byref(tokens),
                layer,
                turns,
                room.data_ptr(),
            )
