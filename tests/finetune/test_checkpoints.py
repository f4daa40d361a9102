"""Checkpoints: a damaged one is seen before it is gone on with."""

from pathlib import Path

import pytest
import torch

from finetune.checkpoints import check_whole
from finetune.config import ConfigError


def test_a_changed_byte_of_an_optimizer_is_seen(tmp_path: Path) -> None:
    torch.save({"moments": torch.ones(1000)}, tmp_path / "optimizer.pt")
    check_whole(tmp_path)
    content = bytearray((tmp_path / "optimizer.pt").read_bytes())
    content[content.index(torch.ones(100).numpy().tobytes()) + 9] ^= 1
    (tmp_path / "optimizer.pt").write_bytes(content)
    with pytest.raises(ConfigError, match=r"optimizer\.pt: is damaged: .* checksum"):
        check_whole(tmp_path)
