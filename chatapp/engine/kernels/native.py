"""The native kernels: `kernels.c`, compiled for this processor and called through ctypes.

Compiled when the package is installed, or else when they are first needed, into the cache folder.
Where there is no compiler, `library` is None, `reason` says why, and torch computes.

Invariant: imports nothing of the package at the top, because build_hook loads this file alone.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).with_name("kernels.c")
CHOICE = "_CHATAPP_KERNELS"
"""Environment variable: a level's name, or "none", in place of what the processor has."""

FLOAT32, INT8, INT4, FLOAT16 = range(4)
OUTPUTS = 16
"""Outputs of a tile."""

LEVELS: dict[str, tuple[str, ...]] = {
    "baseline": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": (
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma"),
        "-mprefer-vector-width=512",
    ),
}
"""Compiler options of each set of instructions, as `instructions` counts them."""

OPTIONS = (
    *("-O3", "-std=c11", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-math-errno"),
    *("-fno-signed-zeros", "-fno-trapping-math", "-freciprocal-math", "-ffp-contract=fast"),
)
"""Compiler options. NaN stays NaN, and sums are added in the order of the source."""
_SECONDS = 300.0


class LinearStruct(ctypes.Structure):
    """`linear` in kernels.c."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("kind", "inputs", "outputs")),
        *((name, ctypes.c_void_p) for name in ("weight", "scale", "bias")),
    )


class Norm(ctypes.Structure):
    """`norm` in kernels.c."""

    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("epsilon", ctypes.c_float))


class AttentionStruct(ctypes.Structure):
    """`attention` in kernels.c."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("heads", "key_value_heads", "head_size", "window")),
        ("scale", ctypes.c_float),
    )


class TokensStruct(ctypes.Structure):
    """`tokens` in kernels.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        *((name, ctypes.c_long) for name in ("row", "head")),
        ("at", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("rows", "positions")),
    )


class BlockStruct(ctypes.Structure):
    """`block` in kernels.c."""

    _fields_ = (
        *((name, Norm) for name in ("norm_1", "norm_2", "after_1", "after_2", "query", "key")),
        *((name, LinearStruct) for name in ("query_key_value", "projection", "expand", "contract")),
        ("attention", AttentionStruct),
        *((name, ctypes.c_int) for name in ("width", "inner", "activation")),
        *((name, ctypes.c_int) for name in ("is_gated", "is_parallel", "turned", "rotation")),
    )


class SamplingStruct(ctypes.Structure):
    """`sampling` in kernels.c."""

    _fields_ = (
        ("top_p", ctypes.c_double),
        *((name, ctypes.c_float) for name in ("temperature", "min_p", "penalty", "relief")),
        *((name, ctypes.c_int) for name in ("top_k", "end_count")),
        *((name, ctypes.c_void_p) for name in ("ends", "uniforms", "seen")),
    )


class DecoderStruct(ctypes.Structure):
    """`decoder` in kernels.c."""

    _fields_ = (
        ("blocks", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("count", "is_half")),
        *((name, ctypes.c_void_p) for name in ("embedding", "positions", "turns")),
        ("scale", ctypes.c_float),
        ("last", Norm),
        ("output", LinearStruct),
    )


_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_long
_SIGNATURES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "instructions": ((), _INT),
    "has_halves": ((), _INT),
    "set_threads": ((_INT,), None),
    "linear_room": ((_POINTER, _INT), _LONG),
    "apply_linear": ((_POINTER, _POINTER, _POINTER, _INT, _POINTER), None),
    "apply_norm": ((_POINTER, _POINTER, _POINTER, _INT, _INT), None),
    "apply_activation": ((_INT, _POINTER, _POINTER, _INT, _INT, _INT), None),
    "attend": ((_POINTER, _POINTER, _POINTER, _LONG, _POINTER, _POINTER), None),
    "block_room": ((_POINTER, _INT, _INT), _LONG),
    "apply_blocks": ((_POINTER, _INT, _POINTER, _POINTER, _LONG, _POINTER, _POINTER), None),
    "log_sum": ((_POINTER, _INT, _POINTER), ctypes.c_float),
    "draw_token": ((_POINTER, _POINTER, _INT, ctypes.c_double, _POINTER), _INT),
    "write_room": ((_POINTER, _INT, _INT), _LONG),
    "write_tokens": (
        (*(_POINTER,) * 2, _LONG, _POINTER, _INT, ctypes.c_double, *(_POINTER,) * 3),
        _INT,
    ),
}


class Kernels(NamedTuple):
    """The compiled library, or None, and a sentence on which it is or why there is none."""

    library: ctypes.CDLL | None
    level: str
    reason: str


@functools.cache
def kernels() -> Kernels:
    """The kernels for this processor, compiled if need be."""
    choice = os.environ.get(CHOICE, "")
    if choice == "none":
        return Kernels(None, "", f"torch multiplies: {CHOICE} is none")
    try:
        level = choice or list(LEVELS)[_open("baseline").instructions()]
        return Kernels(_open(level), level, f"native, compiled for {level}")
    except (OSError, subprocess.SubprocessError) as error:
        return Kernels(
            None, "", f"torch multiplies: the native kernels cannot be compiled, {error}"
        )


def _open(level: str) -> ctypes.CDLL:
    """The library of a level. Raises OSError, SubprocessError."""
    name = library_name(level)
    shipped = SOURCE.with_name(name)
    library = ctypes.CDLL(str(shipped if shipped.is_file() else _cached(level, name)))
    for function, (arguments, result) in _SIGNATURES.items():
        getattr(library, function).argtypes = arguments
        getattr(library, function).restype = result
    return library


def _cached(level: str, name: str) -> Path:
    """The library in the cache folder, compiled there if it is not."""
    from chatapp.common.paths import cache_dir

    folder = cache_dir() / "kernels"
    if not (folder / name).is_file():
        from chatapp.common.userfiles import make_private

        make_private(folder)
        compile_level(level, folder)
    return folder / name


def compile_all(folder: Path) -> list[Path]:
    """Compile the kernels of every level that is not there yet, for an installation.

    Returns the libraries. Raises OSError, SubprocessError.
    """
    for level in levels_here():
        if not (folder / library_name(level)).is_file():
            compile_level(level, folder)
    return [folder / library_name(level) for level in levels_here()]


def compile_level(level: str, folder: Path) -> None:
    """Compile the kernels of a level into a folder. Raises OSError, SubprocessError.

    A library that is there is replaced whole: another process may be reading it.
    """
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        made = Path(aside) / library_name(level)
        threads = () if os.name == "nt" else ("-pthread", "-lm")
        command = [*compiler(), *OPTIONS, *LEVELS[level], "-o", str(made), str(SOURCE), *threads]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        if done.returncode:
            line = next(iter(done.stderr.strip().splitlines()), "no message")
            raise OSError(f"{command[0]} ended with {done.returncode}: {line}")
        made.replace(folder / made.name)


def compiler() -> list[str]:
    """The command of a C compiler: $CC, cc, gcc, clang, or that of the package ziglang.

    Raises FileNotFoundError where there is none.
    """
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and shutil.which(name.split()[0]):
            return name.split()
    if find_spec("ziglang") is not None:
        # By itself it compiles for the processor it runs on, and keeps what debuggers need.
        return [sys.executable, "-P", "-m", "ziglang", "cc", "-mcpu=baseline", "-s"]
    raise FileNotFoundError("there is no C compiler (cc, gcc, clang or the package ziglang)")


def levels_here() -> list[str]:
    """The levels that a compiler for this kind of processor knows."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return list(LEVELS) if is_x86 else ["baseline"]


def library_name(level: str) -> str:
    """The file name of a level's library on this system; another source has another name."""
    text = SOURCE.read_bytes() + repr((OPTIONS, LEVELS[level], platform.machine())).encode()
    suffix = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
    return f"kernels-{level}-{hashlib.sha256(text).hexdigest()[:12]}.{suffix}"
