"""A run that is broken off and gone on with takes the steps of one that is not."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_finetune as tiny
from rich.console import Console

from finetune.run import resume, train
from finetune.training.checkpoints import last_checkpoint

QUIET = Console(stderr=True, quiet=True)
METHODS = [
    {},
    {"method": "lora", "save_every": 4},
    {"precision": "bfloat16", "gradient_checkpointing": True},
    {"optimizer": "muon"},
]


@pytest.mark.parametrize("changes", METHODS, ids=["full", "lora", "bfloat16", "muon"])
def test_broken_off_and_gone_on_gives_the_unbroken_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    # Dropout, so that the random state counts too.
    tiny.saved_config(tmp_path)
    tiny.gpt2(vocab_size=300, n_positions=192, resid_pdrop=0.2).save_pretrained(tmp_path / "base")
    changes = {"accumulate": 2, "batch_size": 3, "epochs": 2.5, **changes}
    whole = train(tiny.saved_config(tmp_path, train=changes, output=str(tmp_path / "whole")), QUIET)
    broken = tiny.saved_config(tmp_path, train=changes)
    with monkeypatch.context() as patch:
        tiny.at_step(patch, 10, tiny.raising(tiny.Killed()))
        with pytest.raises(tiny.Killed):
            train(broken, QUIET)
    run = Path(broken.output)
    (checkpoint,) = {last_checkpoint(run)} - {None}
    assert checkpoint.name in ("checkpoint-9", "checkpoint-8")
    resume(run, [], QUIET)
    expected = tiny.trace(whole)
    found = tiny.trace(run)
    assert found.keys() == expected.keys()
    assert len(found) > 12
    assert found == pytest.approx(expected, abs=1e-6)
    ours, theirs = (json.loads((each / "result.json").read_text()) for each in (run, whole))
    assert ours["eval_loss"] == pytest.approx(theirs["eval_loss"], abs=1e-6)
