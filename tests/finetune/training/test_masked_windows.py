"""Pretraining of a BERT: the run is a masked model that the rest of the program uses."""

import json
import math
import random

import pytest
import tiny_finetune as tiny
from rich.console import Console

from chatapp.engine.backends.masked import MaskedModel
from chatapp.engine.files.model_files import ModelFiles
from finetune.config.sections import FinetuneConfig, PretrainConfig
from finetune.pretrain import pretrain
from finetune.run import train

QUIET = Console(stderr=True, quiet=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    drawn = random.Random(0).choices(WORDS, k=1500)
    rows = [{"text": f"so{6 * f' {word}'}."} for word in drawn]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "output": str(folder / "run"),
        "data": {"train": str(folder / "corpus.jsonl"), "held_out": 0.1},
        "shape": {
            **{"vocabulary": 340, "layers": 2, "heads": 2, "hidden": 32, "positions": 27},
            "architecture": "bert",
        },
        "train": {
            **{"max_steps": 400, "batch_size": 16, "learning_rate": 0.003, "accumulate": 2},
            **{"epochs": 1000, "log_every": 1, "precision": "float32"},
        },
    }
    return pretrain(PretrainConfig.model_validate(settings), QUIET)


WORDS = ("red", "blue", "dog")


def test_it_fills_masks_from_both_sides(run):
    model = MaskedModel.load(ModelFiles.read(run), name="run")
    assert len(model.start) == len(model.end) == 1
    for word in WORDS:
        ids = model.encode(f"so {word} {word} [MASK] {word} {word} {word}.")
        (wanted,) = model.tokenizer.encode(f" {word}")
        logits = model.without_frame(model.run([ids]).logits[0], len(ids))
        assert int(logits[ids.index(model.mask_id)].argmax()) == wanted


def test_the_log_is_that_of_the_masked_loss(run):
    rows = tiny.rows_of(run, "losses.jsonl")
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[0] == pytest.approx(math.log(300), abs=0.4)  # whatever is accumulated
    assert losses[-1] < 1
    assert not (run / "steps").exists()


def test_it_is_trained_further(run, tmp_path):
    texts = [{"text": "the cat sat on the red mat."}] * 30
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    config = {
        "model": str(run),
        "output": str(tmp_path / "run"),
        "data": {"train": str(tmp_path / "rows.jsonl"), "held_out": 0.2},
        "objective": {"kind": "masked"},
        "train": {"max_steps": 2},
    }
    train(FinetuneConfig.model_validate(config), QUIET)
    assert ModelFiles.read(tmp_path / "run").is_masked
