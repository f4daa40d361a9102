"""Each architecture of a pretraining: what it is, its size, and a run that the program can load."""

import json

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from chatapp.engine.models.loading import load_model
from finetune.config.sections import PretrainConfig, Shape
from finetune.pretrain import pretrain
from finetune.training.architectures import ARCHITECTURES, build_network, parameter_formula

SHAPE = {"layers": 4, "heads": 4, "hidden": 96, "positions": 64}


def shape(name):
    return Shape.model_validate({**SHAPE, "architecture": name})


def network(name):
    torch.manual_seed(0)
    return build_network(shape(name), 300, 0).eval()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_sizes_are_alike_and_as_the_formula(name):
    model = network(name)
    embeddings = (300 + 64) * 96
    assert model.num_parameters() - embeddings == pytest.approx(12 * 4 * 96**2, rel=0.1)
    formula, _, values = parameter_formula(shape(name), 300).partition("; ")
    letters = {letter: int(value) for letter, value in (v.split(" = ") for v in values.split(", "))}
    python = formula.replace("·", "*").replace("²", "**2")
    assert model.num_parameters() == eval(python, {}, letters)


@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - {"bert"}))
def test_no_token_sees_a_later_one(name):
    model = network(name)
    ids = torch.arange(20)[None]
    other = ids.clone()
    other[0, 10] = 99
    with torch.no_grad():
        change = (model(ids).logits - model(other).logits)[0].abs().amax(1)
    assert change[:10].max() < 1e-4 < change[10]


def test_every_second_layer_is_banded():
    model = network("sparse")
    ids = torch.arange(60)[None]
    with torch.no_grad():
        model.set_attn_implementation("eager")
        seen = [
            (w[0, :, -1] > 0).sum(-1).max() for w in model(ids, output_attentions=True).attentions
        ]
    assert seen == [60, 8, 60, 8]


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_a_run_is_a_model(tmp_path, name):
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"text": f"The number {i} comes after the number {i - 1}."} for i in range(120)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "output": str(tmp_path / "run"),
        "data": {"train": [{"path": str(corpus)}], "held_out": 0.1},
        "shape": {**SHAPE, "vocabulary": 280, "architecture": name, "positions": 32},
        "train": {"max_steps": 3, "precision": "float32", "watch": False},
    }
    folder = pretrain(PretrainConfig.model_validate(settings), Console(quiet=True))
    assert json.loads((folder / "result.json").read_text())["parameters"] > 10**5
    model = load_model(str(folder))
    ids = model.tokenizer.encode("The number 3")
    with torch.no_grad():
        wanted = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(
            torch.tensor([ids])
        ).logits[0, -1]
    (scores,) = model.score([(ids, ids[-1:])])
    assert scores[0] == pytest.approx(float(wanted.log_softmax(0)[ids[-1]]), abs=1e-3)
