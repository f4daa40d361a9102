"""A run with a head as the model of `chatapp run` and of `chatapp eval`."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny import write_tiny_gpt2

import finetune
from chatapp.engine.backends.head import HEAD_WEIGHTS, HeadModel, HeadSpec
from chatapp.engine.models.resolving import find_model

LABELS = ("ham", "spam")
TASK = """
instruction = "Classify each email."
labels      = ["spam", "ham"]
examples    = [{input = "Win a prize", output = "spam"}, {input = "At noon", output = "ham"}]
[select]
k = 1
"""
TEXTS = ("A free prize", "See you at noon", " and more", "x" * 400)


@pytest.fixture
def spam(tmp_path):
    path = tmp_path / "spam.toml"
    path.write_text(TASK)
    return str(path)


@pytest.fixture
def head(tmp_path):
    """The folder of a tiny model with a head, as a run of finetune leaves it."""
    folder = tmp_path / "head"
    write_tiny_gpt2(folder)
    HeadSpec("classification", LABELS, "\n").save(folder)
    width = json.loads((folder / "config.json").read_text())["n_embd"]
    draw = torch.Generator().manual_seed(3)
    weights = {
        "weight": torch.randn(2, width, generator=draw),
        "bias": torch.randn(2, generator=draw),
    }
    save_file(weights, folder / HEAD_WEIGHTS)
    return str(folder)


def predicted(head):
    """The probabilities that the head gives the texts."""
    model = HeadModel.load(head, find_model(head))
    outputs = model.outputs([model.encoder.sequences([text]) for text in TEXTS])
    return [dict(zip(LABELS, each, strict=True)) for each in outputs]


def test_run_tells_the_label_of_the_head_and_its_probabilities(run, spam, head):
    for text, expected in zip(TEXTS, predicted(head), strict=True):
        result = run("run", spam, "--input", text, "--model", head, "--json")
        assert result.status == 0
        made = json.loads(result.out)
        assert made["label_probabilities"] == pytest.approx(expected, abs=1e-5)
        assert list(made["label_probabilities"]) == ["spam", "ham"]  # as the prompt file has them
        assert made["output"] == max(expected, key=expected.__getitem__)
        assert (made["prompt"], made["examples"]) == (text.strip(), [])
        assert made["log_likelihoods"] is None
    result = run("run", spam, "--input", TEXTS[0], "--model", head)
    assert f"spam  {predicted(head)[0]['spam']:.4f}" in result.err


def test_a_file_of_inputs_is_answered_and_gone_on_with(run, spam, head, tmp_path):
    inputs, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    inputs.write_text("\n".join(TEXTS) + "\n")
    command = ("run", spam, "--inputs", str(inputs), "--output", str(out), "--model", head)
    assert run(*command).status == 0
    whole = out.read_text().splitlines()
    assert len(whole) == len(TEXTS)
    out.write_text("\n".join(whole[:2]) + "\n")
    assert run(*command).status == 0
    outputs = [json.loads(line)["output"] for line in out.read_text().splitlines()]
    assert outputs == [json.loads(line)["output"] for line in whole]


def test_what_a_head_cannot_answer_is_refused(run, spam, head, tmp_path):
    Path(spam).write_text(TASK.replace('"ham"', '"fine"'))
    result = run("run", spam, "--input", "x", "--model", head)
    assert result.status == 2
    assert f"'labels' are not those of the head of {head}: ham, spam" in result.err
    Path(spam).write_text(TASK)
    result = run("run", spam, "--input", "x", "--model", head, "--shots", "1")
    assert (result.status, "--shots cannot be used with" in result.err) == (2, True)
    (Path(head) / HEAD_WEIGHTS).write_bytes(b"no weights")
    result = run("run", spam, "--input", "x", "--model", head)
    assert (result.status, "not the weights of this head" in result.err) == (2, True)


def test_eval_has_a_column_for_the_head(run, spam, head, tmp_path):
    items = [(text, "spam" if number % 2 else "ham") for number, text in enumerate(TEXTS)]
    test = tmp_path / "test.jsonl"
    test.write_text("".join(json.dumps({"text": t, "label": g}) + "\n" for t, g in items))
    answers = [max(each, key=each.__getitem__) for each in predicted(head)]
    share = sum(a == g for a, (_, g) in zip(answers, items, strict=True)) / len(items)
    command = ("eval", spam, "--test", str(test), "--shots", "0,1", "--model")
    results = json.loads(run(*command, head, "--json").out)["results"]
    assert {each["head"] for each in results if each["metric"] == "accuracy"} == {share}
    title, row = (
        next(line for line in run(*command, head).out.splitlines() if line.startswith(f" {name}"))
        for name in ("measure", "accuracy")
    )
    start = title.index(" head ")
    assert float(row[start : start + 6]) == pytest.approx(share, abs=5e-4)
    other = str(write_tiny_gpt2(tmp_path / "other"))
    results = json.loads(run(*command, other, "--json").out)["results"]
    assert {each["head"] for each in results} == {None}
    assert "head" not in run(*command, other).out.split()


@pytest.fixture
def trained(tmp_path):
    """A run whose head was trained on at most 12 tokens of a text."""
    rows = tmp_path / "rows.jsonl"
    labelled = [{"text": f"{'win' if n % 2 else 'see'} {n}", "label": n % 2} for n in range(20)]
    for row in labelled:
        row["label"] = LABELS[row["label"]]
    rows.write_text("".join(json.dumps(row) + "\n" for row in labelled))
    config = {
        "model": str(write_tiny_gpt2(tmp_path / "base", context=256)),
        "output": str(tmp_path / "run"),
        "head": {"task": "classification"},
        "data": {"train": str(rows), "max_length": 12, "held_out": 0.2},
        "train": {"max_steps": 1},
    }
    return finetune.train(config)
