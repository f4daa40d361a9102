"""transformers' Trainer with checkpoints that are whole or not there.

The one invariant: a folder named checkpoint-N is complete. It is written aside and renamed,
so a killed process or a full disk leaves the last one untouched.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from transformers import Trainer
from transformers.trainer_utils import get_last_checkpoint


class CheckpointingTrainer(Trainer):  # type: ignore[misc]
    """A Trainer that writes each checkpoint aside, flushes it to the disk and renames it."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        final = Path(self.args.output_dir)
        aside = final / "unfinished"
        shutil.rmtree(aside, ignore_errors=True)
        self.args.output_dir = str(aside)
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.output_dir = str(final)
        for written in aside.iterdir():
            for file in written.rglob("*"):
                if file.is_file():
                    _flush(file)
            shutil.rmtree(final / written.name, ignore_errors=True)
            written.rename(final / written.name)
        _flush(final)
        aside.rmdir()
        for old in sorted(final.glob("checkpoint-*"), key=_step)[: -self.args.save_total_limit]:
            shutil.rmtree(old)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint of a run, or None."""
    found = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    return Path(found) if found else None


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
