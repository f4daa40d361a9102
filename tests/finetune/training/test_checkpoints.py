"""Checkpoints: a damaged one is seen before it is continued."""

from pathlib import Path

import pytest
import tiny_finetune as tiny
import torch
from rich.console import Console

from chatapp.dialogue.writers.choosing import choose_template
from chatapp.engine.models.loading import load_model
from finetune.config.sections import ConfigError
from finetune.evaluation import compare
from finetune.run import train
from finetune.training.checkpoints import check_whole, last_checkpoint


def test_a_changed_byte_of_an_optimizer_is_seen(tmp_path: Path) -> None:
    torch.save({"moments": torch.ones(1000)}, tmp_path / "optimizer.pt")
    check_whole(tmp_path)
    content = bytearray((tmp_path / "optimizer.pt").read_bytes())
    content[content.index(torch.ones(100).numpy().tobytes()) + 9] ^= 1
    (tmp_path / "optimizer.pt").write_bytes(content)
    with pytest.raises(ConfigError, match=r"optimizer\.pt: is damaged: .* checksum"):
        check_whole(tmp_path)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_checkpoint_is_a_model(tmp_path: Path, method: str) -> None:
    tiny.chatml_base(tmp_path / "base")
    tiny.pairs(tmp_path / "rows.json")
    config = tiny.config(tmp_path, train={"method": method, "epochs": 1})
    run = train(config, Console(quiet=True))
    checkpoint = last_checkpoint(run)
    assert checkpoint is not None
    own, its = (choose_template(load_model(str(each)), "") for each in (run, checkpoint))
    assert own.fingerprint == its.fingerprint
    done, then = compare([str(run), str(checkpoint)], "", 0, 8, lambda *_: None)
    assert done.sets["held_out"].figures == pytest.approx(then.sets["held_out"].figures, rel=1e-5)
