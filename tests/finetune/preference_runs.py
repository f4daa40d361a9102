"""Configurations of runs that learn which of two replies is better."""

import json
from pathlib import Path
from typing import Any

import tiny_finetune as tiny

from finetune.config.sections import FinetuneConfig


def judged(path: Path, count: int = 40) -> Path:
    rows = [
        {"prompt": f"What comes after {n}?", "chosen": f"{n + 1} comes after.", "rejected": "User"}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def config(folder: Path, kind: str, **train: Any) -> FinetuneConfig:
    rows = judged(folder / "judged.jsonl")
    return tiny.config(
        folder, data={"train": str(rows), "held_out": 0.3}, objective={"kind": kind}, train=train
    )
