"""A model of an encoder and a decoder behind the commands and in a chat."""

import json

import pytest
from seq2seq_models import write_seq2seq

SPAM = """instruction = "Say."
input_prefix = "In: "
output_prefix = "Out:"
examples = [{input = "a fox", output = "dog"}, {input = "a dog", output = "model"}]
"""
GENERATE = "[generate]\nmax_tokens = 4\ntemperature = 0\n"


@pytest.fixture(scope="module", params=["t5", "bart"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("seq2seq")
    write_seq2seq(request.param, folder)
    return str(folder)


@pytest.fixture
def prompt(tmp_path):
    path = tmp_path / "say.toml"
    path.write_text(SPAM + GENERATE)
    return path


def test_it_answers(run, model):
    flags = ("--model", model, "--seed", "1", "--max-tokens", "6", "--json")
    for command in ("ask", "complete"):
        result = run(command, "The lazy dog", *flags)
        assert result.status == 0, result.err
        answer = json.loads(result.out)
        assert answer["reply"]
        assert answer["finish_reason"] in ("length", "stop", "repetition")
        assert json.loads(run(command, "The lazy dog", *flags).out)["reply"] == answer["reply"]


def test_it_takes_prompt_files(run, model, prompt, tmp_path):
    flags = (str(prompt), "--model", model)
    assert run("run", *flags, "--input", "a cat").status == 0
    inputs = tmp_path / "inputs.jsonl"
    inputs.write_text("".join(json.dumps({"input": f"fox {i}"}) + "\n" for i in range(3)))
    result = run("run", *flags, "--inputs", str(inputs))
    assert result.status == 0, result.err
    together = [json.loads(line) for line in result.out.splitlines()]
    alone = json.loads(run("run", *flags, "--input", "fox 2", "--json").out)
    assert len(together) == 3
    assert together[2]["output"] == alone["output"]
    prompt.write_text(SPAM + 'labels = ["dog", "model"]\n')
    scored = json.loads(run("run", *flags, "--input", "a cat", "--json").out)
    assert sum(scored["label_probabilities"].values()) == pytest.approx(1)
    result = run(
        "eval",
        str(prompt),
        "--model",
        model,
        "--test",
        str(inputs_with(tmp_path)),
        "--shots",
        "0,1",
        "--report",
        str(tmp_path / "report"),
    )
    assert result.status == 0, result.err


def inputs_with(folder):
    path = folder / "test.jsonl"
    rows = [{"input": "a fox", "output": "dog"}, {"input": "the dog", "output": "model"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_both_stacks_are_inspected(run, model, tmp_path):
    text = ("inspect", "The lazy dog", "--model", model)
    reply = json.loads(run("complete", *text[1:], "--temperature", "0", "--json").out)["reply"]
    page = tmp_path / "page.html"
    shown = run(*text, "--output", str(page))
    assert shown.status == 0, shown.err
    assert "Cross-attention" in page.read_text()
    views = ("tokens", "cross_attention")
    tokens, cross = (json.loads(run("inspect", v, *text[1:], "--json").out)[v] for v in views)
    known = [row for row in tokens if row["probability"] is not None]
    assert len(known) == len(cross["reply"]) == len(cross["weights"])
    assert "".join(cross["reply"]).replace("▁", " ").strip().startswith(reply[:4].strip())
    for (view, *more), words in (
        (("layers", "--token", "0"), "the encoder predicts no tokens"),
        (("why",), "the parts of this kind of model cannot be measured"),
        (("experts",), "has no mixture of experts"),
    ):
        failed = run("inspect", view, *text[1:], *more)
        assert (failed.status, failed.out) == (2, "")
        assert words in failed.err


def test_what_it_cannot_do_is_said(run, model):
    measured = run("bench", "--model", model)
    assert measured.status == 2
    assert "is an encoder-decoder model" in measured.err
