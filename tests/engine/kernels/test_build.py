"""Compiling the kernels: at installation, at first use, and where that fails."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from chatapp.engine.kernels import build_hook, native


@pytest.fixture(autouse=True)
def afresh(tmp_path, monkeypatch):
    """Kernels that are nowhere yet, and no choice among them."""
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(native.CHOICE, raising=False)
    source = tmp_path / "chatapp" / "engine" / "kernels" / "kernels.c"
    source.parent.mkdir(parents=True)
    source.write_text("int instructions(void) { return 0; }\n", encoding="utf-8")
    code = native.SOURCE.with_name("native.py").read_text(encoding="utf-8")
    source.with_name("native.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(native, "SOURCE", source)
    native.kernels.cache_clear()
    yield
    native.kernels.cache_clear()


def program(folder, code):
    """A command that stands in a compiler's place; it runs `code`."""
    path = folder / "compiler.py"
    path.write_text(code, encoding="utf-8")
    return f"{sys.executable} {path}"


@pytest.fixture(params=["missing", "failing", "vanished"])
def no_compiler(request, tmp_path, monkeypatch):
    """A machine whose compiler is of no use, and what is to be read of it."""
    if request.param == "missing":
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(native, "find_spec", lambda name: None)
        return "no C compiler"
    if request.param == "failing":
        command = program(tmp_path, "import sys; sys.exit('disk full')")
        monkeypatch.setenv("CC", command)
        return "disk full"
    monkeypatch.setattr(native, "compiler", lambda: [str(tmp_path / "gone")])
    return "gone"


def test_without_a_working_compiler_torch_multiplies(no_compiler):
    kernels = native.kernels()
    assert kernels.library is None
    assert "torch multiplies" in kernels.reason
    assert no_compiler in kernels.reason


def run_hook(root):
    """What a wheel is to be built of, and what was warned of."""
    warnings = []
    hook = build_hook.KernelsHook.__new__(build_hook.KernelsHook)
    app = SimpleNamespace(display_warning=warnings.append)
    hook.__dict__.update({"_BuildHookInterface__root": str(root), "_BuildHookInterface__app": app})
    data = {"force_include": {}}
    hook.initialize("standard", data)
    return data, warnings


def test_an_installation_without_a_working_compiler_succeeds(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", program(tmp_path, "import sys; sys.exit('disk full')"))
    data, warnings = run_hook(tmp_path)
    assert data == {"force_include": {}}
    assert len(warnings) == 1
    assert "disk full" in warnings[0]


def test_an_installation_puts_a_library_of_each_level_into_the_wheel(tmp_path, monkeypatch):
    made = "import sys; open(sys.argv[sys.argv.index('-o') + 1], 'w').close()"
    monkeypatch.setenv("CC", program(tmp_path, made))
    data, warnings = run_hook(tmp_path)
    assert not warnings
    assert re.fullmatch(r"py3-none-\w+", data["tag"])
    assert not data["pure_python"]
    names = sorted(Path(name).name for name in data["force_include"].values())
    assert names == sorted(map(native.library_name, native.levels_here()))
    assert all(Path(name).is_file() for name in data["force_include"])


def test_zig_compiles_for_any_processor_of_its_kind(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(native, "find_spec", lambda name: name == "ziglang")
    command = native.compiler()
    assert command[:5] == [sys.executable, "-P", "-m", "ziglang", "cc"]
    assert "-mcpu=baseline" in command
