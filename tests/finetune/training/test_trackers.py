"""The log of a run in the trackers that it reports to, with fakes in place of their libraries."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import tiny_finetune as tiny
from accelerate import tracking
from accelerate.utils import LoggerType
from rich.console import Console

from finetune.run import train

QUIET = Console(stderr=True, quiet=True)
Told = dict[int, dict[str, float]]
"""What a tracker was told, by the step."""


def installed(monkeypatch, name, **attributes):
    """A module that can be found and imported."""
    module = MagicMock(name=name, **attributes)
    module.__spec__ = ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, name, module)
    if "." not in name:  # accelerate looks for them when it is imported
        monkeypatch.setattr(tracking, "_available_trackers", [LoggerType(name)])
    return module


def logging(monkeypatch, name):
    """A tracker whose runs have a method `log`."""
    told: Told = {}

    class Run(MagicMock):
        def log(self, values, step):
            told.setdefault(step, {}).update(values)

    installed(monkeypatch, name, init=lambda **_: Run())
    return told


def wandb(monkeypatch):
    return logging(monkeypatch, "wandb")


def trackio(monkeypatch):
    return logging(monkeypatch, "trackio")


def tensorboard(monkeypatch):
    told: Told = {}

    class SummaryWriter(MagicMock):
        def __init__(self, log_dir="", **_):
            super().__init__()
            # `tensorboard --logdir RUN` looks into the folders of the run.
            assert not log_dir or "run" in Path(log_dir).parts

        def add_scalar(self, name, value, global_step):
            told.setdefault(global_step, {})[name] = value

    installed(monkeypatch, "tensorboard")
    installed(monkeypatch, "torch.utils.tensorboard", SummaryWriter=SummaryWriter)
    return told


@pytest.mark.parametrize("tracker", [tensorboard, wandb, trackio])
def test_a_tracker_is_told_what_the_log_holds(tmp_path, monkeypatch, tracker):
    told = tracker(monkeypatch)
    settings = {"report_to": [tracker.__name__], "max_steps": 4, "eval_every": 2}
    run = train(tiny.config(tmp_path, train=settings), QUIET)
    rows = tiny.rows_of(run)
    losses = {row["step"]: row["l3"] for row in rows if "l3" in row}
    assert list(losses) == [1, 2, 3, 4]
    assert {step: row["train/l3"] for step, row in told.items() if "train/l3" in row} == losses
    held_out = {row["step"]: row["eval_loss"] for row in rows if "eval_loss" in row}
    assert list(held_out) == [2, 4]
    assert {s: row["eval/loss"] for s, row in told.items() if "eval/loss" in row} == held_out


def test_a_run_is_told_to_nobody_who_is_not_asked_for(tmp_path, monkeypatch):
    told = [tracker(monkeypatch) for tracker in (tensorboard, wandb, trackio)]
    train(tiny.config(tmp_path, train={"max_steps": 2}), QUIET)
    assert told == [{}, {}, {}]
