"""Compiles the native kernels when the package is built; without a compiler it has none."""

import importlib.util
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsHook(BuildHookInterface[Any]):
    """Put a library for each instruction set next to kernels.c, and into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = Path(self.root, "chatapp", "engine", "kernels")
        spec = importlib.util.spec_from_file_location("native", folder / "native.py")
        assert spec is not None
        assert spec.loader is not None
        native = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = native
        spec.loader.exec_module(native)
        try:
            libraries = native.compile_all(folder)
        except (OSError, subprocess.SubprocessError) as error:
            self.app.display_warning(f"Native kernels are left out, torch computes: {error}")
            return
        build_data["pure_python"] = False
        # The kernels know nothing of Python: a wheel serves every version.
        platform = re.sub(r"\W", "_", sysconfig.get_platform())
        build_data["tag"] = f"py3-none-{platform}"
        for library in libraries:
            build_data["force_include"][str(library)] = str(library.relative_to(self.root))
