"""What is installed: the wheel holds what the program reads, and not how its model was made."""

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.wheel import WheelBuilder

import chatapp

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return ZipFile(built)


@pytest.fixture(scope="module")
def metadata(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(wheel.read(name))


@pytest.mark.parametrize(
    ("folder", "inside"),
    [
        ("prompts", "chatapp/prompts"),
        ("chatapp/docs", "chatapp/docs"),
        ("chatapp/bundled", "chatapp/bundled"),
        ("chatapp/dialogue/lessons/shipped", "chatapp/dialogue/lessons/shipped"),
        ("finetune/recipes", "finetune/recipes"),
    ],
)
def test_what_the_program_reads_is_in_it(wheel, folder, inside):
    here = {
        path.relative_to(ROOT / folder).as_posix(): path.read_bytes()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert here
    names = (name for name in wheel.namelist() if name.startswith(f"{inside}/"))
    assert {name.removeprefix(f"{inside}/"): wheel.read(name) for name in names} == here


def test_every_module_is_in_it_except_how_the_bundled_model_is_made(wheel):
    modules = {
        path.relative_to(ROOT).as_posix()
        for package in ("chatapp", "finetune")
        for path in (ROOT / package).rglob("*.py")
    }
    made = {name for name in modules if name.startswith("finetune/bundled_model/")}
    assert made
    assert {name for name in wheel.namelist() if name.endswith(".py")} == modules - made
    assert not any("bundled_model" in name for name in wheel.namelist())
    assert {"chatapp/py.typed", "finetune/py.typed"} <= set(wheel.namelist())


def test_what_only_the_bundled_model_needs_is_an_extra(metadata):
    needed = metadata.get_all("Requires-Dist", [])
    yaml = [requirement for requirement in needed if re.match(r"pyyaml\b", requirement)]
    assert any("extra == 'bundled-model'" in requirement for requirement in yaml)
    assert all("extra ==" in requirement for requirement in yaml)


def stand_in(name, version, folder):
    """A wheel without a module, which takes the place of a dependency in an index."""
    about = f"{name.replace('-', '_')}-{version}.dist-info"
    with ZipFile(folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl", "w") as made:
        made.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        made.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"{about}/RECORD", f"{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n")


@pytest.fixture(scope="module")
def index(wheel, metadata, tmp_path_factory):
    """The environment of installers whose only index is a folder: the wheel, and a stand-in for
    each of its dependencies; a program that they install finds the real ones after its own.
    """
    folder = tmp_path_factory.mktemp("index")
    shutil.copy(wheel.filename, folder)
    for requirement in metadata.get_all("Requires-Dist"):
        if lowest := re.match(r"([\w.-]+).*?>=([\d.]+)", requirement):
            stand_in(*lowest.groups(), folder)
    here = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.path += {here}\n")
    (folder / "overrides.txt").write_text("torch; python_version < '3'\n")
    home = {name: str(folder / name) for name in ("HOME", "UV_TOOL_DIR", "UV_TOOL_BIN_DIR")}
    of_pipx = {
        "PIPX_HOME": str(folder / "pipx"),
        "PIPX_BIN_DIR": str(folder / "bin"),
        "PIPX_DEFAULT_BACKEND": "uv",
    }
    venv.create(folder / "venv")
    of_pip = {
        "PIP_PYTHON": str(folder / "venv"),
        "PIP_NO_INDEX": "1",
        "PIP_IGNORE_INSTALLED": "1",  # in the gate, this program is on PYTHONPATH's other paths
        "PIP_FIND_LINKS": str(folder),
        "PIP_CONFIG_FILE": os.devnull,
    }
    of_uv = {"UV_NO_INDEX": "1", "UV_FIND_LINKS": str(folder), "UV_CACHE_DIR": str(folder / "uv")}
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    return {
        **os.environ, **home, **of_pipx, **of_pip, **of_uv,
        "UV_PYTHON": sys.executable, "PYTHONPATH": str(folder), "PATH": path,
    }  # fmt: skip


def output(line, environment):
    done = subprocess.run(
        line, shell=True, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-1000:]
    return done.stdout


@pytest.mark.skipif(os.name == "nt", reason="the lines are those of a POSIX shell")
@pytest.mark.parametrize(
    ("program", "bin"),
    [("uvx", ""), ("uv tool", "UV_TOOL_BIN_DIR"), ("pipx", "bin"), ("pip", "venv/bin")],
)
def test_a_line_of_the_readme_installs_it_from_an_index(index, program, bin):
    if not shutil.which(program.split()[0]):
        pytest.skip(f"{program} is not installed")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^{program} .*$", readme, re.MULTILINE)
    folder = Path(index["HOME"]).parent
    if "--torch-backend" in line:  # uv looks for torch in PyTorch's own index alone
        index = index | {"UV_OVERRIDE": str(folder / "overrides.txt")}
    expected = f"chatapp {chatapp.__version__}\n"
    if program == "uvx":
        assert output(f"{line} --version", index) == expected
        return
    output(line, index)
    assert output(f"{folder / bin / 'chatapp'} --version", index) == expected
    assert "Teach a GPT" in output(f"{folder / bin / 'finetune'} --help", index)
