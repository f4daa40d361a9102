"""Configurations of reinforcement with a tiny model."""

from pathlib import Path
from typing import Any

import pytest
import tiny_finetune as tiny

from chatapp.common.paths import trusted_folders_path
from finetune.config.objectives import GrpoSettings
from finetune.config.sections import FinetuneConfig


def settings(**changes: Any) -> GrpoSettings:
    plain = {"kind": "grpo", "rewards": [{"kind": "regex", "pattern": "e"}], "replies": 4}
    return GrpoSettings.model_validate(plain | changes)


def config(folder: Path, rewards: Any = None, data: Any = None, **objective: Any) -> FinetuneConfig:
    """A run of a tiny model that is to write the letter e."""
    rewards = rewards or [{"kind": "regex", "pattern": "e"}]
    plain = {"kind": "grpo", "rewards": rewards, "replies": 4, "max_tokens": 6, **objective}
    return tiny.config(
        folder,
        data={"held_out": 0.2, **(data or {})},
        objective=plain,
        train={"batch_size": 2, "accumulate": 2, "max_steps": 6, "save_every": 4},
    )


def trust(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the code of a folder run without a question."""
    monkeypatch.setenv("CHATAPP_HOME", str(folder))
    trusted_folders_path().parent.mkdir(parents=True, exist_ok=True)
    trusted_folders_path().write_text(f"{folder}\n")
