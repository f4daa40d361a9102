"""Kills at random moments of training: the run goes on, and ends as an unbroken one."""

import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
import tiny_finetune as tiny
from rich.console import Console

from finetune.run import resume, train

STEPS = {"epochs": 2, "save_every": 2, "accumulate": 2, "batch_size": 3}


def go_on(config):
    """Begin a run or continue it, as a user would."""
    folder, quiet = Path(config.output), Console(stderr=True, quiet=True)
    if not (folder / "run.json").exists():
        train(config, quiet)
    elif not (folder / "result.json").exists():
        resume(folder, [], quiet)


def kill(folder, monkeypatch, seed, kills):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["finetune.run", "tiny_finetune"])
    imports = context.Process(target=int)
    imports.start()
    imports.join()
    dice, runs = random.Random(seed), 0

    def ends(config, seconds):
        process = context.Process(target=go_on, args=(config,))
        process.start()
        process.join(seconds)
        process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL), config.output
        return process.exitcode == 0

    samples = {"held_out": 0}
    whole = tiny.saved_config(folder, train=STEPS, samples=samples, output=str(folder / "whole"))
    began = time.monotonic()
    assert ends(whole, 300)
    usual = time.monotonic() - began
    while kills > 0:
        config = whole.model_copy(update={"output": str(folder / f"run{runs}")})
        runs += 1
        while not ends(config, dice.random() * usual):
            kills -= 1
        assert tiny.trace(Path(config.output)) == pytest.approx(
            tiny.trace(folder / "whole"), abs=1e-6
        )


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")


def test_kills_leave_runs_that_go_on(tmp_path, monkeypatch):
    kill(tmp_path, monkeypatch, 35, 2)


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_a_hundred_kills_leave_runs_that_go_on(tmp_path, monkeypatch):
    kill(tmp_path, monkeypatch, 2026, 100)
