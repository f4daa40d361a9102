"""A run that is broken off and gone on with takes the steps of one that is not."""

import json

import preference_runs
import pytest
import tiny_finetune as tiny
import tiny_grpo
from rich.console import Console

from finetune.run import train
from finetune.training.checkpoints import last_checkpoint

QUIET = Console(stderr=True, quiet=True)


def supervised(folder, **changes):
    """With dropout, so that the random state counts too."""
    steps = {"accumulate": 2, "batch_size": 3, "epochs": 2.5, **changes}
    config = tiny.saved_config(folder, train=steps)
    tiny.gpt2(vocab_size=300, n_positions=192, resid_pdrop=0.2).save_pretrained(folder / "base")
    return config


def distilled(folder):
    tiny.base(folder / "teacher", seed=7)
    objective = {"kind": "distillation", "teacher": str(folder / "teacher"), "own_replies": 0.5}
    return tiny.saved_config(
        folder,
        data={"held_out": 0.2, "packing": True},
        objective={**objective, "max_tokens": 6},
        train={"batch_size": 2, "accumulate": 2, "max_steps": 12},
    )


RUNS = {
    "full": supervised,
    "lora": lambda folder: supervised(folder, method="lora", save_every=4),
    "bfloat16": lambda folder: supervised(
        folder, precision="bfloat16", gradient_checkpointing=True
    ),
    "muon": lambda folder: supervised(folder, optimizer="muon"),
    # The weights have moved; the reference is still what the run began with.
    **{kind: lambda folder, kind=kind: preference_runs.config(folder, kind, epochs=3, save_every=4)
       for kind in ("dpo", "kto")},
    "grpo": lambda folder: tiny_grpo.config(folder),
    "grpo twice": lambda folder: tiny_grpo.config(folder, iterations=3, beta=0.05),
    "distillation": distilled,
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_broken_off_and_gone_on_gives_the_unbroken_trace(tmp_path, monkeypatch, name):
    broken = RUNS[name](tmp_path)
    whole = train(broken.model_copy(update={"output": str(tmp_path / "whole")}), QUIET, "cpu")
    run = tiny.broken_off(broken, monkeypatch, 5 if name.startswith("grpo") else 10)
    assert last_checkpoint(run)
    expected, found = tiny.rows_of(whole), tiny.rows_of(run)
    assert len(found) == len(expected) > 6
    for row, wanted in zip(found, expected, strict=True):
        for cost in ("seconds", "tokens_per_second", "memory_bytes", "samples"):
            row.pop(cost, None), wanted.pop(cost, None)
        assert row == pytest.approx(wanted, abs=1e-6)
    ours, theirs = (json.loads((each / "result.json").read_text()) for each in (run, whole))
    assert ours["eval_loss"] == pytest.approx(theirs["eval_loss"], abs=1e-6)
