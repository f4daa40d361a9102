"""Layers that the native kernels compute (a product, and the blocks of a decoder), and what is
fastest on this machine, measured once and stored: threads for a token, and a prompt's products.

A token reads every matrix once, so memory limits its speed: if one thread reads nearly as fast
as several, more threads only take cores from other programs. Products of many rows are limited by
computing: torch's BLAS has, on some processors, twice the speed of the kernels, and on others half.

Invariants: blocks give what their parts give one by one, up to the order of sums; tests hold both
equal. What is measured while other programs run is used, but not stored.
"""

import ctypes
import functools
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from chatapp.common.foreign import parse_json
from chatapp.common.paths import cache_dir
from chatapp.common.userfiles import read_regular, write_whole
from chatapp.engine.kernels import native
from chatapp.engine.kernels.machine import seconds_of_others
from chatapp.engine.kernels.rounding import kind_of

_COLUMNS, _OUTPUTS = 1024, 2**16
"""The shape of an int8 matrix that is larger than any processor's cache."""

_ENOUGH = 1.1
"""The fewest threads are chosen whose time is at most this factor times the best time."""

_MANY_ROWS, _WIDTH = 256, 768
"""The product at which torch and the kernels are compared."""

_ROUNDS = 3
_QUIET = 0.2
"""The share of a core that other programs may use meanwhile."""


@functools.cache
def token_threads(most: int) -> int:
    """How many of at most `most` threads compute a token, or a few, soonest."""
    return _kept(f"{most}", lambda: fewest(_seconds_by_threads(most)), most)


@functools.cache
def torch_multiplies_faster(threads: int) -> bool:
    """Whether torch is faster than the kernels at a product of many rows in float32."""
    return _kept(f"{threads}, torch", lambda: int(_is_torch_faster(threads)), 1, least=0) == 1


def _kept(what: str, measure: Callable[[], int], most: int, least: int = 1) -> int:
    """The number stored for this machine, from `least` to `most`; else it is measured."""
    path = cache_dir() / "kernels" / "measured.json"
    key = f"{platform.node()}, {os.cpu_count()} cores, {native.kernels().level}, {what}"
    kept: dict[str, int] = {}
    with suppress(OSError, TypeError, ValueError):
        kept = dict(parse_json(read_regular(path)))
    stored = kept.get(key)
    if isinstance(stored, int) and least <= stored <= most:
        return stored
    began, before = time.monotonic(), seconds_of_others()
    measured = measure()
    after, lasted = seconds_of_others(), time.monotonic() - began
    if before is not None and after is not None and after - before <= _QUIET * lasted:
        with suppress(OSError):
            write_whole(path, json.dumps({**kept, key: measured}))
    return measured


def fewest(seconds: dict[int, float]) -> int:
    """The least number of threads whose time is nearly the best."""
    return min(n for n, spent in seconds.items() if spent <= _ENOUGH * min(seconds.values()))


def _seconds_by_threads(most: int) -> dict[int, float]:
    """The seconds of a product with one row, by the number of threads: 1, 2, 4 …, and `most`."""
    library = native.kernels().library
    assert library is not None
    tiles = torch.ones(_OUTPUTS * _COLUMNS, dtype=torch.int8)
    scale, x, y = torch.ones(_OUTPUTS), torch.ones(_COLUMNS), torch.empty(_OUTPUTS)
    layer = native.LinearStruct(
        native.INT8, _COLUMNS, _OUTPUTS, tiles.data_ptr(), scale.data_ptr(), None
    )
    of = ctypes.byref(layer)
    room = torch.empty(library.linear_room(of, 1), dtype=torch.uint8)
    counts = [*(2**n for n in range(most.bit_length()) if 2**n < most), most]
    seconds = dict.fromkeys(counts, float("inf"))
    for _ in range(_ROUNDS):
        for count in counts:
            library.set_threads(count)
            started = time.perf_counter()
            library.apply_linear(of, x.data_ptr(), y.data_ptr(), 1, room.data_ptr())
            seconds[count] = min(seconds[count], time.perf_counter() - started)
    return seconds


@torch.inference_mode()
def _is_torch_faster(threads: int) -> bool:
    library = native.kernels().library
    assert library is not None
    weight, x = torch.ones(4 * _WIDTH, _WIDTH), torch.ones(_MANY_ROWS, _WIDTH)
    y = torch.empty(_MANY_ROWS, len(weight))
    layer = native.LinearStruct(native.FLOAT32, _WIDTH, len(weight), weight.data_ptr(), None, None)
    library.set_threads(threads)
    best = [float("inf")] * 2
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        library.apply_linear(ctypes.byref(layer), x.data_ptr(), y.data_ptr(), _MANY_ROWS, None)
        between = time.perf_counter()
        F.linear(x, weight)
        spent = between - started, time.perf_counter() - between
        best = [min(pair) for pair in zip(best, spent, strict=True)]
    return best[1] < best[0]


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
        self.struct = native.LinearStruct(kind, inputs, outputs, *addresses)

    def __call__(self, x: Tensor) -> Tensor:
        return multiply(self._library, self.struct, x)


def multiply(library: ctypes.CDLL, layer: native.LinearStruct, x: Tensor) -> Tensor:
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


def float_struct(weight: Tensor, bias: Tensor | None) -> native.LinearStruct:
    """A product with float32 or float16 weights (out, in), for a block."""
    outputs, inputs = weight.shape
    kind = native.FLOAT16 if weight.dtype == torch.float16 else native.FLOAT32
    address = None if bias is None else bias.data_ptr()
    return native.LinearStruct(kind, inputs, outputs, weight.data_ptr(), None, address)


_SMALL = 2**20


def halves(library: ctypes.CDLL, weight: Tensor) -> Tensor | None:
    """A small float32 matrix in float16, if that has its numbers exactly: half as much to read.

    None for another, and where the processor would read no faster.
    """
    if not library.has_halves() or weight.numel() > _SMALL:
        return None
    half = weight.half()
    return half if torch.equal(half.float(), weight) else None


@dataclass(frozen=True, slots=True)
class TokenRows:
    """The tokens of a pass that blocks compute natively, one a row.

    at: their positions, int32. span: more than the largest position. turns: of each rotation,
    cosines and sines (positions, size / 2). held: for each layer keys and values, (2, sequences,
    key/value heads, positions, head size), in one piece of memory. is_batch: whether each row
    belongs to another sequence; otherwise all belong to the first.
    """

    at: Tensor
    span: int
    turns: Sequence[tuple[Tensor, Tensor]]
    held: tuple[Tensor, ...]
    is_batch: bool

    def struct(self, block: int = 0) -> native.TokensStruct:
        """For the blocks from this one on."""
        first = self.held[0]
        keys, row = first.data_ptr() + 4 * first.numel() * block, first.stride(1)
        return native.TokensStruct(
            *(keys, keys + 4 * first.stride(0), row if self.is_batch else 0, first.stride(2)),
            *(self.at.data_ptr(), self.at.shape[0], self.span),
        )

    def turn_addresses(self) -> ctypes.Array[ctypes.c_void_p]:
        """Where the cosines and sines of each rotation are."""
        addresses = [part.data_ptr() for turn in self.turns for part in turn] or [0, 0]
        return (ctypes.c_void_p * len(addresses))(*addresses)


AHEAD, AHEAD_SECONDS = 16, 0.01
"""The most tokens that one call draws for a sequence, and the time after which it ends with the
next one: neither cancelling nor a reader notices it.
"""

Written = list[tuple[int, float]]
"""The tokens drawn for a sequence: their ids, and natural logs of their probabilities."""


class Ends(NamedTuple):
    """What a decoder has before and after its blocks.

    embedding: (vocabulary, width), float32 or float16; scale: its factor. positions: their own one,
    if there is. norm: of the last states.
    """

    embedding: Tensor
    scale: float
    positions: Tensor | None
    norm: native.Norm
    output: native.LinearStruct


class NativeBlocks:
    """The blocks of a decoder.

    structs: one a block, which point into its tensors. most_rows: of which they are faster than
    torch.
    """

    __slots__ = ("_library", "_structs", "most_rows")

    def __init__(self, structs: Sequence[native.BlockStruct]) -> None:
        library = native.kernels().library
        assert library is not None
        self._library = library
        self._structs = (native.BlockStruct * len(structs))(*structs)
        # With integers there is no other way, and none was faster (prompt of 512, SmolLM2: 0.53 s
        # of one core in int8, 0.60 in int4; by torch's products 0.67 and 0.96).
        is_float = structs[0].expand.kind in (native.FLOAT32, native.FLOAT16)
        is_slower = is_float and torch_multiplies_faster(torch.get_num_threads())
        self.most_rows = FEW_ROWS if is_slower else sys.maxsize

    def normed(self, x: Tensor, norm: native.Norm) -> Tensor:
        """The states x (rows, width), normalized in place."""
        self._library.apply_norm(ctypes.byref(norm), x.data_ptr(), x.data_ptr(), *x.shape)
        return x

    def add_to(
        self, x: Tensor, rows: TokenRows, raise_if_cancelled: Callable[[], None] | None = None
    ) -> None:
        """Add to the states x (rows, width), in place, what the blocks add to them.

        Few rows go through all blocks in one call, so that between two of them no thread waits for
        Python. raise_if_cancelled: called before each call.
        """
        library, size = self._library, ctypes.sizeof(native.BlockStruct)
        count = x.shape[0]  # len of a tensor takes longer than a call of the library
        layer, turns = rows.held[0].numel(), rows.turn_addresses()
        room = torch.empty(library.block_room(self._structs, count, rows.span), dtype=torch.uint8)
        blocks = len(self._structs) if count <= FEW_ROWS else 1
        choose_threads(library, count)
        for block in range(0, len(self._structs), blocks):
            if raise_if_cancelled is not None:
                raise_if_cancelled()
            tokens = rows.struct(block)
            library.apply_blocks(
                ctypes.addressof(self._structs) + size * block,
                blocks,
                x.data_ptr(),
                ctypes.byref(tokens),
                layer,
                turns,
                room.data_ptr(),
            )

    def write(
        self,
        ends: Ends,
        last: Sequence[int],
        rows: TokenRows,
        samplings: Sequence[native.SamplingStruct],
        most: int,
    ) -> list[Written]:
        """Read the token `last` of each row, draw one, read that, and so on.

        rows: the tokens `last`; their span has room for `most` more. most: tokens of each row.
        Ends sooner at one that ends a reply, after `AHEAD_SECONDS`, and before logits that are not
        finite. The rows get the same number of tokens.
        """
        library, count, blocks = self._library, len(last), self._structs
        turns, positions = rows.turn_addresses(), ends.positions
        of = ctypes.byref(
            native.DecoderStruct(
                *(ctypes.addressof(blocks), len(blocks), ends.embedding.dtype == torch.float16),
                *(ends.embedding.data_ptr(), None if positions is None else positions.data_ptr()),
                *(ctypes.addressof(turns), ends.scale, ends.norm, ends.output),
            )
        )
        room = torch.empty(library.write_room(of, count, rows.span), dtype=torch.uint8)
        ids = (ctypes.c_int * (count * (most + 1)))(*last)
        logprobs = (ctypes.c_double * (count * most))()
        choose_threads(library, count)
        written = library.write_tokens(
            *(of, ctypes.byref(rows.struct()), rows.held[0].numel()),
            *((native.SamplingStruct * count)(*samplings), most, AHEAD_SECONDS),
            *(ids, logprobs, room.data_ptr()),
        )
        drawn = list(zip(ids[count:], logprobs, strict=True))[: written * count]
        return [drawn[row::count] for row in range(count)]
