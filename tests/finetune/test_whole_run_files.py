"""A write that fails in the middle leaves the file of a run unchanged."""

import json
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from full_disk import full_after

from chatapp.common.paths import CHAT_TEMPLATE
from chatapp.prompting.template import CHAT
from finetune.measuring.run_report import PLOT_FILE, REPORT_FILE, write_report
from finetune.objectives import rows
from finetune.objectives.l3 import L3
from finetune.run import BAD_BATCH_FILE, _write_bad_batch
from finetune.training.checkpoints import save_chat
from finetune.training.loop import NotFinite
from finetune.training.record import LOG_FILE, RunLog, write_json


def report(folder):
    (folder / LOG_FILE).write_text('{"step": 1, "seconds": 1, "l2": 2.0}\n')
    record = {
        "config": {"train": {"metric_for_best_model": "loss"}},
        "data": {"rows": "0" * 64},
        "weights": "0" * 64,
        "versions": {},
    }
    result = {"steps": 1, "best_step": 1, "seconds": 1.0, "peak_memory_bytes": 1}
    write_report(folder, [], L3(aux_weight=0.5), record, result)


def bad_batch(folder):
    batch = {"input_ids": torch.ones(2, 9).long(), "example_ids": torch.ones(2, 9).long()}
    setup = SimpleNamespace(tokenizer=SimpleNamespace(decode=str))
    _write_bad_batch(folder / BAD_BATCH_FILE, setup, NotFinite("", [batch]))


class OnePair(list):
    lengths = (99,)


def reference_values(folder):
    path = folder / rows.REFERENCE_FILE
    with patch.object(rows, "log_probs_of", return_value=[torch.zeros(2, 99)]):
        digest = f"another, so that it is written again: {path.exists()}"
        rows.give_reference(None, {"train": OnePair("1")}, None, "float32", None, path, digest)


WRITES = {
    "record": ("run.json", lambda folder: write_json(folder / "run.json", {"key": "value " * 9})),
    "report": (REPORT_FILE, report),
    "plot": (PLOT_FILE, report),
    "bad batch": (BAD_BATCH_FILE, bad_batch),
    "template": (CHAT_TEMPLATE, lambda folder: save_chat(CHAT, folder)),
    "reference": (rows.REFERENCE_FILE, reference_values),
}


@pytest.mark.parametrize("place", WRITES)
def test_the_file_before_is_whole(tmp_path, place):
    name, write = WRITES[place]
    write(tmp_path)
    before, names = (tmp_path / name).read_bytes(), sorted(tmp_path.iterdir())
    with full_after(len(before) // 2), pytest.raises(Exception, match=r"too large|error 27"):
        write(tmp_path)
    assert (tmp_path / name).read_bytes() == before
    assert sorted(tmp_path.iterdir()) == names


def test_a_log_that_cannot_be_cut_is_whole(tmp_path):
    path = tmp_path / LOG_FILE
    rows = [{"step": step, "seconds": 0.5, "loss": 1.0} for step in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = path.read_bytes()
    with full_after(len(before) // 4), pytest.raises(OSError, match="File too large"):
        RunLog(path, ("loss",)).begin(10)
    assert path.read_bytes() == before
    assert len(RunLog(path, ("loss",)).begin(10)) == 11
