"""What is installed: the wheel holds what the program reads, and not how its model was made."""

import email
import re
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.wheel import WheelBuilder

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
