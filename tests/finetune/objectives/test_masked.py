"""Masked training and heads on `[CLS]`: the formulas, whole runs, and what is refused."""

import json
from pathlib import Path

import pytest
import tiny_masked
import torch
from rich.console import Console
from torch.nn import functional

from chatapp.engine.files.model_files import ModelFiles
from finetune.config.sections import FinetuneConfig
from finetune.data.batches import collate
from finetune.evaluation import evaluate
from finetune.objectives.masked import Masked
from finetune.run import train
from finetune.training.setup import set_up_run

QUIET = Console(stderr=True, quiet=True)


def config(folder, **changes):
    """A run of a tiny BERT on 40 sentences with a rule: the colour follows from the animal."""
    if not (folder / "model").exists():
        tiny_masked.save(folder / "model")
    rows = ["the cat sat on the red mat .", "the dog sat on the blue mat ."] * 20
    texts = [f"{row} {'a ' * (n % 4)}" for n, row in enumerate(rows)]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    settings = {
        "model": str(folder / "model"),
        "output": str(folder / "run"),
        "data": {"train": str(folder / "rows.jsonl"), "held_out": 0.2},
        "objective": {"kind": "masked", "share": 0.3},
        "train": {
            "epochs": 8.0,
            "batch_size": 16,
            "learning_rate": 0.02,
            "warmup": 0,
            "precision": "float32",
        },
    }
    return FinetuneConfig.model_validate(settings | changes)


def batch_of(setup, size):
    return collate([setup.data.train[index] for index in range(size)], 3)


def test_the_loss_is_the_formulas(tmp_path):
    setup = set_up_run(config(tmp_path), "cpu")
    masked, model = setup.objective, setup.model
    assert isinstance(masked, Masked)
    batch = batch_of(setup, 4)
    model.eval()
    counts = masked.count([batch], model, model)
    read, chosen = masked.hidden_rows(batch, None)
    assert int(chosen.sum()) == counts.item()
    assert batch["input_ids"][0, 0] == 2
    assert batch["input_ids"][:, -1].eq(3).all()
    losses = masked.losses(model, model, batch, counts, 0.5)
    nlls, hits = [], []
    for row in range(4):
        real = batch["example_ids"][row] > 0
        with torch.no_grad():  # a row by itself, without padding
            logits = model(input_ids=read[row][real][None]).logits[0]
        places = chosen[row][real]
        golds = batch["input_ids"][row][real][places]
        nlls.append(functional.cross_entropy(logits[places], golds, reduction="none"))
        hits.append(logits[places].argmax(1) == golds)
    assert losses.tolist() == pytest.approx(
        [torch.cat(nlls).mean().item(), torch.cat(hits).float().mean().item()], rel=1e-4
    )


def test_masks_are_15_percent_of_which_80_10_10(tmp_path):
    masked = Masked(0.15, 0, 4, frozenset({2, 3, 4}), 24)
    ids = torch.randint(5, 24, (400, 100))
    ids[:, 0], ids[:, -1] = 2, 3
    batch = {
        "input_ids": ids,
        "aux_mask": torch.ones_like(ids, dtype=torch.bool),
        "example_ids": torch.ones_like(ids),
    }
    read, chosen = masked.hidden_rows(batch, 0.1)
    assert chosen.sum(1).eq(15).all()
    assert not chosen[:, [0, -1]].any()
    assert torch.equal(read[~chosen], ids[~chosen])
    of_chosen, before = read[chosen], ids[chosen]
    assert (of_chosen == 4).float().mean() == pytest.approx(0.8, abs=0.02)
    same = (of_chosen == before).float().mean()
    assert same == pytest.approx(0.1 + 0.1 / 24, abs=0.02)
    # The same step gives the same masks, whatever else is in the batch; another step others.
    alone = {key: value[7:8] for key, value in batch.items()}
    assert torch.equal(masked.hidden_rows(alone, 0.1)[0][0], read[7])
    assert not torch.equal(masked.hidden_rows(alone, 0.2)[0][0], read[7])


def test_a_run_learns_to_fill_masks(tmp_path):
    run = config(tmp_path)
    train(run, QUIET)
    folder = Path(run.output)
    result = json.loads((folder / "result.json").read_text())
    before = evaluate(str(tmp_path / "model"), str(folder), "", 0, 8, lambda *_: None)
    after = evaluate(str(folder), str(folder), "", 0, 8, lambda *_: None)
    figures = after.sets["held_out"].figures
    assert figures["loss"] < 0.7 * before.sets["held_out"].figures["loss"]
    assert figures["loss"] == pytest.approx(result["eval_loss"], rel=1e-3)
    assert ModelFiles.read(folder).is_masked
