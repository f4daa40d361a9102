"""A sampling parameter is described once, and everything else follows from that."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from chatapp.common.parameters import PARAMETERS, Sampling, parameter

ROOT = Path(__file__).parents[2]

# What a contributor would write, and then what each user of the table makes of it.
FIELD = """
    typical_p: float = _described(
        1.0, low=0, above_low=True, high=1, off=1, meaning="keep what is typical",
        request_fields=("typical_p", "typical"), is_extension=True,
    )
"""
SCRIPT = """
import sys, types
from pathlib import Path

source = Path("chatapp/common/parameters.py").read_text()
before, method, after = source.partition("    def __post_init__")
module = types.ModuleType("chatapp.common.parameters")
sys.modules["chatapp.common.parameters"] = module
exec(compile(before + FIELD + method + after, "parameters.py", "exec"), module.__dict__)

import asyncio, os
from dataclasses import replace
from typer.testing import CliRunner

from chatapp.cli import app
from chatapp.dialogue.variants import Variant
from chatapp.engine.backends.remote.completions import RemoteModel
from chatapp.engine.backends.remote.server import Server
from chatapp.fewshot.answering import sampling_of
from chatapp.common.parameters import Sampling
from chatapp.common.paths import presets_path, settings_path
from chatapp.common.presets import read_presets, save_preset
from chatapp.prompting.files.promptfile import load_prompt
from chatapp.common.settings import load_settings
from chatapp.tui.screens.parameters import HINTS, _texts
from chatapp.tui.chat.slash_actions import differences, parameter_names

help = CliRunner().invoke(app, ["ask", "--help"], env={"COLUMNS": "200"}).output
assert "--typical-p" in help and "Keep what is typical; 1 is off." in help, help

settings_path().parent.mkdir(parents=True)
settings_path().write_text("typical_p = 0.5")
assert load_settings().sampling == Sampling(typical_p=0.5)
os.environ["CHATAPP_TYPICAL_P"] = "0.6"
assert load_settings().sampling == Sampling(typical_p=0.6)
assert load_settings({"typical_p": 0.7}).sampling == Sampling(typical_p=0.7)

changed = Sampling().changed("typical_p", "0.2")  # /set
assert "typical_p" in parameter_names(None)
no_models = types.SimpleNamespace(models=types.SimpleNamespace(names=list))
assert "typical_p=" in differences(no_models)
assert HINTS["typical_p"] == "keep what is typical; 1 is off"
assert _texts(changed)["typical_p"] == "0.2"  # F2
variant = Variant("bundled", "auto", "", Sampling()).changed("typical_p=0.2")
assert variant.sampling == changed and "typical_p 0.2" in variant.words()

save_preset(presets_path(), "mine", changed)
assert read_presets(presets_path()) == {"mine": changed}

prompt = settings_path().with_name("task.toml")
prompt.write_text("[generate]\\ntypical_p = 0.2")
assert sampling_of(load_prompt(prompt)).typical_p == 0.2

remote = RemoteModel(Server("http://here/v1"), name="x", context=99)
body = remote._options(changed, 9)
assert (body["typical_p"], body["typical"], body["max_tokens"]) == (0.2, 0.2, 9)
assert "asked for typical_p, but not every server" in remote._options_in_words(changed)
"""


def test_another_parameter_appears_everywhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"FIELD = {FIELD!r}\n{SCRIPT}"],
        cwd=ROOT,
        env={"CHATAPP_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("temperature", "from 0 to 100"),
        ("top_k", "0 (off) or more"),
        ("top_p", "above 0 and at most 1 (off)"),
        ("min_p", "from 0 (off) to below 1"),
        ("repetition_penalty", "above 0 and at most 100; 1 is off"),
        ("seed", "from 0 to 9223372036854775807"),
        ("max_tokens", "1 or more"),
    ],
)
def test_a_range_is_said_in_words_and_kept(name: str, words: str) -> None:
    assert PARAMETERS[name].range_in_words == words
    for value in (-1, float("nan")):
        with pytest.raises(ValueError, match=re.escape(f"{name} is {value}; expected {words}")):
            PARAMETERS[name].check_range(value)


def test_bounds_belong_to_a_range_or_not() -> None:
    Sampling(temperature=100, top_p=1, min_p=0, repetition_penalty=100, seed=2**63 - 1)
    for name, bound in (("top_p", 0), ("min_p", 1), ("repetition_penalty", 0), ("seed", 2**63)):
        with pytest.raises(ValueError, match=f"^{name} is {bound}; expected"):
            Sampling(**{name: bound})


def test_only_the_seed_may_be_left_open() -> None:
    assert parameter("seed").parsed("") is None
    assert parameter("seed").checked(None) is None
    with pytest.raises(ValueError, match="top_k is ''; expected a whole number"):
        parameter("top_k").parsed("")
    with pytest.raises(ValueError, match="top_k is None; expected a whole number"):
        Sampling.of({"top_k": None})


def test_what_switches_a_parameter_off_is_in_its_range() -> None:
    off = {name: each.off for name, each in PARAMETERS.items() if each.off is not None}
    assert off == {
        "top_k": 0,
        "top_p": 1,
        "min_p": 0,
        "repetition_penalty": 1,
        "no_repeat_ngram": 0,
        "max_repeats": 0,
    }
    Sampling.of(off)
