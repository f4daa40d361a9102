"""Kills at random moments of training: the run goes on, and ends as an unbroken one."""

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import tiny_finetune as tiny
from rich.console import Console

from chatapp.common.userfiles import UserError
from finetune.config.sections import FinetuneConfig
from finetune.run import resume, train
from finetune.training.checkpoints import last_checkpoint

QUIET = Console(stderr=True, quiet=True)
STEPS = {"epochs": 12, "save_every": 2, "accumulate": 2, "batch_size": 3}


def killed(config: FinetuneConfig, folder: Path, seconds: float) -> bool:
    """Train, or go on, in a process that is killed after a time; whether it ended before."""
    if not (pid := os.fork()):
        status = 1
        with suppress(BaseException):
            if last_checkpoint(folder):
                resume(folder, [], QUIET)
            else:
                train(config, QUIET)
            status = 0
        os._exit(status)
    deadline = time.monotonic() + seconds
    while not (ended := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.002)
    if not ended[0]:
        os.kill(pid, signal.SIGKILL)
        ended = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(ended[1])
    assert code in (0, -signal.SIGKILL), folder
    return code == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a run is a fork")
@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_a_hundred_kills_leave_runs_that_go_on(tmp_path: Path) -> None:
    dice, counts = random.Random(35), Counter[str]()
    whole = tiny.saved_config(tmp_path, train=STEPS, output=str(tmp_path / "whole"))
    began = time.monotonic()
    assert killed(whole, tmp_path / "whole", 600)
    usual = time.monotonic() - began
    expected = tiny.trace(tmp_path / "whole")
    while counts["kills"] < 100:
        folder = tmp_path / f"run{counts['runs']}"
        config = tiny.saved_config(tmp_path, train=STEPS, output=str(folder))
        while not killed(config, folder, dice.random() * usual):
            counts["kills"] += 1
            if folder.exists() and not last_checkpoint(folder):
                with pytest.raises(UserError):  # says that there is nothing to go on with
                    resume(folder, [], QUIET)
                break
        else:
            counts["whole runs"] += 1
            assert tiny.trace(folder) == pytest.approx(expected, abs=1e-6)
        counts["runs"] += 1
    print(dict(counts))
    assert counts["whole runs"]
