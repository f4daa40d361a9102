"""`run --parts`: which part of a prompt decided an answer."""

import json
from pathlib import Path

import pytest

PROMPT = """
instruction = "Classify."
input_prefix = "Text: "
output_prefix = "Class:"
labels = ["x", "yz"]
examples = [
    {input = "aa", output = "x"}, {input = "b", output = "yz"}, {input = "ccc", output = "x"},
]
"""


@pytest.fixture
def prompt(tmp_path):
    path = tmp_path / "task.toml"
    path.write_text(PROMPT)
    return str(path)


def test_the_example_that_decided_an_answer(run, folder, prompt):
    options = ("run", prompt, "--model", folder, "--input", "abc", "--parts")
    result = run(*options, "--json")
    assert result.status == 0, result.err
    document = json.loads(result.out)
    explained = document["parts"]
    assert explained["answer"].strip() == document["output"]
    assert {explained["answer"].strip(), explained["against"].strip()} == {"x", "yz"}
    direct = document["log_likelihoods"]["direct"]
    expected = max(direct.values()) - min(direct.values())
    assert explained["difference"] == pytest.approx(expected, abs=1e-3)
    names = [part["part"] for part in explained["parts"]]
    assert names == ["instruction", "example 1", "example 2", "example 3", "input"]
    assert explained["parts"][2]["text"] == "Text: b\nClass: yz"
    shown = run(*options)
    assert shown.out == document["output"] + "\n"
    best = max(explained["parts"][1:4], key=lambda part: part["occlusion"])["part"]
    assert f"mostly to {best}:" in " ".join(shown.err.split())


def test_what_run_cannot_explain_is_refused(run, folder, prompt):
    options = ("run", prompt, "--model", folder, "--input", "abc", "--parts")
    for more in (("--score", "channel"), ("--select", "vote")):
        result = run(*options, *more)
        assert result.status == 2
        assert "--parts explains labels that are scored directly" in result.err
    inputs = Path(prompt).with_name("inputs.txt")
    inputs.write_text("abc\n")
    result = run("run", prompt, "--model", folder, "--inputs", str(inputs), "--parts")
    assert result.status == 2
    assert "--parts is for one input" in result.err
