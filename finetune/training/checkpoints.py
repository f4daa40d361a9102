"""Checkpoints that are complete or absent.

Invariant: a folder named checkpoint-N is complete. It is written elsewhere and renamed, so a killed
process or a full disk leaves the last one untouched.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from transformers import Trainer

from finetune.config.sections import ConfigError
from finetune.training.run_setup import is_first_process

# Free bytes of a disk that counts as full.
_NO_ROOM = 2**24


OPTIMIZER_FILE = "optimizer.pt"

LOCK_FILE = ".lock"
"""Held by the process that writes a run; deleted at its end."""

_NUMBERED = re.compile(r"checkpoint-\d+")

UNFINISHED = "unfinished"
"""The folder, within a run's, in which models and checkpoints are written before they are moved."""


class SaveError(OSError):
    """A checkpoint could not be written. The one before it is complete."""


class CheckpointingTrainer(Trainer):  # type: ignore[misc]
    """A Trainer that writes each checkpoint elsewhere, flushes it to the disk and renames it.

    It keeps the last `save_total_limit` checkpoints and the best one. complete: adds the files that
    make a model of a checkpoint's weights.
    """

    complete: Callable[[Path], None] = staticmethod(lambda folder: None)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        final = Path(self.args.output_dir)
        aside = final / UNFINISHED
        is_main = self.is_world_process_zero()
        if is_main:
            shutil.rmtree(aside, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self.args.output_dir = str(aside)
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if is_main:
                for written in list(aside.iterdir()):
                    self.complete(written)
                    for file in written.rglob("*"):
                        if file.is_file():
                            flush(file)
                    shutil.rmtree(final / written.name, ignore_errors=True)
                    written.rename(final / written.name)
                flush(final)
                aside.rmdir()
        except Exception as error:  # torch and safetensors have their own for a full disk
            reason = _reason(error, final)
            shutil.rmtree(aside, ignore_errors=True)
            last = last_checkpoint(final)
            raise SaveError(
                f"{final}: the checkpoint of step {self.state.global_step} could not be written: "
                f"{reason}; {last.name + ' is whole' if last else 'there is none yet'}"
            ) from error
        finally:
            self.args.output_dir = str(final)
        if is_main:
            best = f"checkpoint-{self.state.best_global_step}"
            for old in checkpoints_of(final)[: -self.args.save_total_limit]:
                if old.name != best:
                    shutil.rmtree(old)
        self.accelerator.wait_for_everyone()


def checkpoints_of(folder: Path) -> list[Path]:
    """The checkpoints of a run, the oldest first; a folder with another name is not ours."""
    found = [path for path in folder.glob("checkpoint-*") if _NUMBERED.fullmatch(path.name)]
    return sorted((path for path in found if path.is_dir()), key=_step)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run, or None."""
    return next(reversed(checkpoints_of(folder)), None)


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Hold the folder of a run, which is made if need be, until the block ends or the process does.

    Of several processes of one run the first holds it. Raises ConfigError when another run does.
    """
    if not is_first_process():
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_FILE, timeout=0)
        lock.acquire()
    except Timeout:
        raise ConfigError(f"{folder}: another process is writing this run") from None
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        with suppress(OSError):  # while it is held: a moment later it may be another process's
            os.unlink(lock.lock_file)
        lock.release()


def check_whole(checkpoint: Path) -> None:
    """Read the files of a checkpoint. Raises ConfigError that names a damaged one."""
    if not any(checkpoint.glob("optimizer*")):
        raise ConfigError(
            f"{checkpoint}: the state of the optimizer is not kept with it; train another run from "
            "it as a model"
        )
    for file in sorted(checkpoint.iterdir()):
        try:
            match file.suffix:
                case ".json":
                    json.loads(file.read_text(encoding="utf-8"))
                case ".safetensors":
                    with safe_open(file, "pt"):
                        pass
                case ".pt" | ".pth":
                    with ZipFile(file) as archive:
                        if damaged := archive.testzip():
                            raise BadZipFile(f"{damaged} does not match its checksum")
        except (OSError, ValueError, BadZipFile, SafetensorError) as error:
            raise ConfigError(
                f"{file}: is damaged: {_first_line(error)}; remove {checkpoint.name} to continue "
                "from the checkpoint before it"
            ) from None


def drop_optimizer_states(folder: Path) -> None:
    """Remove the optimizer states of a finished run, which are twice the size of its model, except
    the last, from which it can be continued.
    """
    for checkpoint in checkpoints_of(folder)[:-1]:
        (checkpoint / OPTIMIZER_FILE).unlink(missing_ok=True)


def _reason(error: Exception, folder: Path) -> str:
    """Why a file could not be written, in words; torch reports a full disk in its own."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if shutil.disk_usage(folder).free < _NO_ROOM:
        return "the disk is full"
    return _first_line(error)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def flush(path: Path) -> None:
    """Flush a file or folder to the disk."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
