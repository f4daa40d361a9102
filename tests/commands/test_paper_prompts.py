"""The prompts of the literature, byte for byte as `run --show-prompt` prints them."""

import json
import tomllib
from pathlib import Path

import pytest
from fakes import ScriptedModel

PROMPTS = Path(__file__).parents[2] / "prompts"
SHOWN = tomllib.loads((Path(__file__).parent / "paper_prompts.toml").read_text())["shown"]


@pytest.mark.parametrize("case", SHOWN, ids=lambda case: case["command"])
def test_the_prompt_of_the_library_is_shown_byte_for_byte(run, use_model, case):
    use_model(ScriptedModel([" x"]))
    command = ["run", *case["command"].split(), "--input", case["input"], "--shots", case["shots"]]
    result = run(*command, "--json")
    assert result.status == 0, result.err
    assert json.loads(result.out)["prompt"] == case["prompt"]
    assert run(*command, "--show-prompt").err.startswith(case["prompt"])


@pytest.mark.parametrize(("name", "end"), [("unicorns", "a dozen"), ("prime_numbers", "17, 19,")])
def test_a_text_to_complete(run, use_model, name, end):
    (path,) = PROMPTS.rglob(f"{name}.txt")
    text = path.read_bytes().decode().removesuffix("\n")
    use_model(ScriptedModel([" 23"]))
    result = run("run", name, "--json")
    assert json.loads(result.out)["prompt"] == text
    assert end in text
    assert run("run", name, "--show-prompt").err.startswith(text + "\n")
