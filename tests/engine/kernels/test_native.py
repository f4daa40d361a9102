"""Each kernel against the same formula in torch, for every set of instructions that is here.

FUZZ_SHAPES sets how many random shapes, odd ones among them.
"""

import ctypes
import math
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from chatapp.engine.kernels import native, rounding

SHAPES = int(os.environ.get("FUZZ_SHAPES", "60"))
ACTIVATIONS = (lambda x: F.gelu(x, approximate="tanh"), F.gelu, F.relu, F.silu)


def levels():
    names = native.levels_here()
    try:
        has = native._open("baseline").instructions()
    except OSError:
        return []
    return names[: has + 1]


@pytest.fixture(scope="module", params=levels() or ["none"])
def library(request):
    if request.param == "none":
        pytest.skip("there is no C compiler here")
    return native._open(request.param)


def at(tensor):
    return None if tensor is None else tensor.data_ptr()


def product(library, layer, x):
    rows, out = len(x), layer.outputs
    y = torch.full((rows, out), torch.nan)
    room = torch.empty(library.linear_room(ctypes.byref(layer), rows), dtype=torch.uint8)
    library.apply_linear(ctypes.byref(layer), at(x), at(y), rows, at(room))
    return y


def assert_rounded_once(y, x, weight, bias):
    """A product differs from the exact one by what rounding each row to 16,000 steps explains.

    An activation is off by at most half a step, m / 32,000 for the largest magnitude m of its
    row; allowed are six standard deviations of the sum, and float32's own error.
    """
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    half_step = x.abs().amax(1, keepdim=True).double() / 32_000
    spread = half_step / 3**0.5 * weight.double().norm(dim=1)
    assert ((y - exact).abs() <= 6 * spread + 1e-5 * exact.abs() + 1e-6).all()


def unpack_int8(tiles, out):
    """(tiles, in / 2, 16, 2) -> (out, in)."""
    return tiles.permute(0, 2, 1, 3).reshape(-1, 2 * tiles.shape[1])[:out]


def unpack_int4(tiles, out):
    """(tiles, in / 4, 32) -> (out, in) of numbers from 0 to 15, uint8."""
    pairs = torch.stack((tiles & 15, tiles >> 4), 2).view(*tiles.shape[:2], 2, native.OUTPUTS, 2)
    return pairs.permute(0, 3, 1, 2, 4).reshape(-1, 4 * tiles.shape[1])[:out]


@pytest.mark.parametrize("threads", [1, 2])
def test_products(library, threads):
    library.set_threads(threads)
    draw = random.Random(threads)
    for n in range(SHAPES):
        torch.manual_seed(n)
        rows, out = draw.choice((1, 1, 2, 3, 5, 8, 11)), draw.randint(1, 90)
        columns = draw.choice((2, 4, 34, 62, 96, 128, 1022, 1026, 2080))
        x = torch.randn(rows, columns) * draw.choice((1e-4, 1.0, 300.0))
        if draw.random() < 0.3:
            x[0, draw.randrange(columns)] *= 200  # an outlier, as Llama has them
        bias = torch.randn(out) if draw.random() < 0.5 else None
        weight = torch.randn(out, columns)
        layer = native.LinearStruct(native.FLOAT32, columns, out, at(weight), None, at(bias))
        expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
        reach = x.abs().double() @ weight.abs().double().t()
        assert ((product(library, layer, x) - expected).abs() <= 2e-6 * reach + 1e-6).all()

        half = (weight * draw.choice((1e-6, 1.0))).half()  # tiny ones are below float16's normals
        for kind, numbers in ((native.FLOAT32, half.float()), (native.FLOAT16, half)):
            layer = native.LinearStruct(kind, columns, out, at(numbers), None, at(bias))
            if kind == native.FLOAT32:
                expected = product(library, layer, x)
            elif library.has_halves():  # what is left of a row after whole vectors may differ
                allowed = 2e-6 * (x.abs() @ half.float().abs().t() + 1) * (columns % 16 > 0)
                assert ((product(library, layer, x) - expected).abs() <= allowed).all()

        whole = torch.randint(-127, 128, (out, columns), dtype=torch.int8)
        scale = torch.rand(out) * 0.01
        packed = rounding.pack_int8(whole)
        assert torch.equal(unpack_int8(packed, out), whole)
        layer = native.LinearStruct(native.INT8, columns, out, at(packed), at(scale), at(bias))
        assert_rounded_once(product(library, layer, x), x, whole * scale[:, None], bias)

        columns = 32 * draw.randint(1, 9)
        x = torch.randn(rows, columns)
        numbers = torch.randint(0, 16, (out, columns), dtype=torch.uint8)
        scale = (torch.rand(out, columns // 32) * 0.1).bfloat16().float()
        least = torch.randn(out, columns // 32).bfloat16().float()
        packed, scales = rounding.pack_int4(numbers), rounding.pack_scales(scale, least)
        assert torch.equal(unpack_int4(packed, out), numbers)
        layer = native.LinearStruct(native.INT4, columns, out, at(packed), at(scales), at(bias))
        values = numbers.view(out, -1, 32) * scale[..., None] + least[..., None]
        assert_rounded_once(product(library, layer, x), x, values.flatten(1), bias)


def test_a_row_gives_the_same_in_company(library):
    library.set_threads(2)
    torch.manual_seed(0)
    x = torch.randn(11, 96)
    for kind, weight, scale in (
        (native.FLOAT32, torch.randn(40, 96), None),
        (
            native.INT8,
            rounding.pack_int8(torch.randint(-127, 128, (40, 96), dtype=torch.int8)),
            torch.rand(40),
        ),
        (
            native.INT4,
            rounding.pack_int4(torch.randint(0, 16, (40, 96))),
            rounding.pack_scales(torch.rand(40, 3), torch.rand(40, 3)),
        ),
    ):
        layer = native.LinearStruct(kind, 96, 40, at(weight), at(scale), None)
        together = product(library, layer, x)
        alone = torch.cat([product(library, layer, row[None]) for row in x])
        assert torch.equal(together, alone)


def test_what_is_no_number_gives_none(library):
    weight, scale = rounding.pack_int8(torch.ones(16, 4, dtype=torch.int8)), torch.ones(16)
    layer = native.LinearStruct(native.INT8, 4, 16, at(weight), at(scale), None)
    for wrong in (torch.nan, torch.inf, -torch.inf):
        x = torch.tensor([[1.0, wrong, 0, 0], [1.0, 1, 1, 1]])
        y = product(library, layer, x)
        assert not y[0].isfinite().any()
        assert torch.allclose(y[1], torch.full((16,), 4.0), rtol=1e-3)
    assert (product(library, layer, torch.zeros(1, 4)) == 0).all()


def test_norms_and_activations(library):
    draw = random.Random(0)
    for n in range(SHAPES):
        torch.manual_seed(n)
        rows, width = draw.randint(1, 5), draw.randint(1, 200)
        x, weight = torch.randn(rows, width) * 10, torch.randn(width)
        bias = torch.randn(width) if n % 2 else None
        norm = native.Norm(at(weight), at(bias), 1e-5)
        y = torch.empty_like(x)
        library.apply_norm(ctypes.byref(norm), at(x), at(y), rows, width)
        if bias is None:
            expected = F.rms_norm(x, (width,), weight, 1e-5)
        else:
            expected = F.layer_norm(x, (width,), weight, bias, 1e-5)
        assert torch.allclose(y, expected, atol=2e-5, rtol=2e-5)
        for kind, activation in enumerate(ACTIVATIONS):
            library.apply_activation(kind, at(x), at(y), rows, width, 0)
            assert torch.allclose(y, activation(x), atol=2e-6, rtol=2e-6)
            gated = torch.randn(rows, 2 * width)
            gate, up = gated.chunk(2, -1)
            expected = activation(gate) * up
            library.apply_activation(kind, at(gated), at(y), rows, width, 1)
            assert torch.allclose(y, expected, atol=2e-6, rtol=2e-6)


def test_attention(library):
    draw = random.Random(1)
    for n in range(SHAPES):
        torch.manual_seed(n)
        library.set_threads(1 + n % 2)
        shared, size, positions = (
            draw.randint(1, 3),
            draw.choice((2, 16, 33, 64)),
            draw.randint(1, 90),
        )
        heads, rows = shared * draw.randint(1, 3), draw.randint(1, 4)
        window = draw.choice((0, 0, 1, 7))
        store = torch.randn(2, rows, shared, positions, size)
        at_positions = torch.tensor(
            [draw.randrange(positions) for _ in range(rows)], dtype=torch.int32
        )
        query = torch.randn(rows, heads + 2 * shared, size) * 3
        config = native.AttentionStruct(heads, shared, size, window, 0.3)
        held = (at(store[0]), at(store[1]), shared * positions * size, positions * size)
        tokens = native.TokensStruct(*held, at(at_positions), rows, positions)
        mixed, room = torch.empty(rows, heads, size), torch.empty(rows * heads * positions)
        library.attend(
            ctypes.byref(config),
            ctypes.byref(tokens),
            at(query),
            query.stride(0),
            at(mixed),
            at(room),
        )
        for r, last in enumerate(at_positions.tolist()):
            first = max(0, last - window + 1) if window else 0
            keys, values = (
                part[r, :, first : last + 1].double().repeat_interleave(heads // shared, 0)
                for part in store
            )
            scores = (keys @ query[r, :heads, :, None].double())[..., 0] * 0.3
            expected = (scores.softmax(-1)[:, None] @ values)[:, 0]
            assert torch.allclose(mixed[r].double(), expected, atol=1e-5)


def test_the_exponential_is_exact_enough(library):
    x = torch.linspace(-80, 80, 20001)
    y = torch.empty_like(x)
    library.apply_activation(3, at(x), at(y), 1, len(y), 0)
    assert math.isclose(float((y - F.silu(x)).abs().max()), 0, abs_tol=1e-5)


def test_the_instructions_are_those_that_the_system_lists():
    listed = Path("/proc/cpuinfo")
    if not listed.is_file() or len(native.levels_here()) < 2 or not levels():
        pytest.skip("there is no list of a processor's instructions here, or no compiler")
    flags = set(listed.read_text("utf-8").partition("flags")[2].partition("\n")[0].split())
    wide = {f"avx512{part}" for part in ("f", "bw", "dq", "vl", "_vnni")}
    expected = 2 if wide <= flags else 1 if {"avx2", "fma"} <= flags else 0
    assert native._open("baseline").instructions() == expected


CHECK = Path(__file__).with_name("check_kernels.c")
SANITIZERS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover")


def check_kernels(folder, compiler, run, *options):
    """Compile the kernels with `check_kernels.c`, which compares them with plain loops, and run."""
    program = folder / "check"
    command = [*compiler, *(o for o in native.OPTIONS if o != "-shared"), *options]
    files = ["-I", str(native.SOURCE.parent), str(CHECK), "-o", str(program), "-pthread", "-lm"]
    made = subprocess.run([*command, *files], capture_output=True, text=True)
    if options[:1] == SANITIZERS[:1] and made.returncode:
        pytest.skip("this compiler has no sanitizers")
    assert made.returncode == 0, made.stderr
    done = subprocess.run([*run, str(program), str(SHAPES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_arm(tmp_path):
    compiler, emulator = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("there is no compiler for ARM here, or no emulator")
    check_kernels(tmp_path, [compiler], [emulator], "-static")


@pytest.mark.parametrize("level", levels()[-1:])
def test_no_kernel_reads_or_writes_elsewhere(level, tmp_path):
    check_kernels(tmp_path, native.compiler(), [], *SANITIZERS, *native.LEVELS[level])
