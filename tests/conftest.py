"""The native kernels are compiled once, beside their source, before the first test."""

import subprocess
from contextlib import suppress

from chatapp.engine.kernels import native


def pytest_sessionstart() -> None:
    with suppress(OSError, subprocess.SubprocessError):  # torch computes, and their tests skip
        native.compile_all(native.SOURCE.parent)
