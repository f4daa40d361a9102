"""Two processes, as `torchrun` starts them, take the steps of one and write one run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_finetune as tiny
import torch
from rich.console import Console

from chatapp.prompting.template import CHAT, load_template
from finetune.config.sections import PretrainConfig, load_config
from finetune.data.batches import Rows
from finetune.data.preparation import HELD_OUT
from finetune.measuring.learning import step_folder
from finetune.pretrain import pretrain
from finetune.run import train

QUIET = Console(stderr=True, quiet=True)
LENGTHS = [12, 5, 9, 20, 7, 16, 6, 11, 8, 13, 10]
"""In steps of eight rows: the second has three for two processes."""

# The work of all tests, because a process takes longer to import what it needs than to do it.
PROGRAM = """
import json, runpy, sys
from contextlib import suppress
from pathlib import Path
import torch
import tiny_finetune as tiny
from finetune.data.batches import Rows

folder, lengths = Path(sys.argv[1]), json.loads(sys.argv[2])
rows = Rows(tiny.examples(lengths), "prompt")
made = tiny.trainer(folder, tiny.gpt2(), rows, batch_size=2, accumulate=2, processes=2,
                    held_out={"held_out": rows}, save_every=1)
kept = tiny.Kept()
made.observers.append(kept)
logs, gradients = tiny.step_gradients(made)
logs |= made.evaluate()
logs["second"] = kept.rows[1]["loss"]
if made.accelerator.is_main_process:
    clean = {name.removeprefix("module."): value for name, value in gradients.items()}
    torch.save((logs, clean), folder / "step.pt")

for command, name in (("train", "config"), ("pretrain", "pretrain")):
    sys.argv = ["finetune", command, str(folder / f"{name}.toml")]
    with suppress(SystemExit):
        runpy.run_module("finetune", run_name="__main__")
"""

PRETRAIN = """
output = "{folder}/pretrained"
shape  = {{ vocabulary = 280, layers = 2, heads = 2, hidden = 16, positions = 32 }}

[train]
batch_size = {batch}
max_steps  = 4
log_every  = 1
save_every = 2
watch      = true
precision  = "float32"

[data]
train    = [{{ path = "{folder}/corpus.jsonl" }}]
held_out = 0.1
"""


def write_pretraining(folder, batch):
    """The configuration of a short run on a few sentences, which stand beside it."""
    rows = [{"text": f"The number {i} comes after the number {i - 1}."} for i in range(320)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "pretrain.toml"
    path.write_text(PRETRAIN.format(folder=folder, batch=batch))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    config = tiny.config(
        folder,
        train={"batch_size": 2},
        samples={"prompts": ["What comes after 3?"], "max_tokens": 4},
    )
    tiny.written(config, folder / "config.toml")
    write_pretraining(folder, batch=4)
    (folder / "program.py").write_text(PROGRAM)
    return folder


@pytest.fixture(scope="module")
def done(folder):
    environment = tiny.environment()
    environment["PYTHONPATH"] += f"{os.pathsep}{Path(tiny.__file__).parent}"
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
        *(str(folder / "program.py"), str(folder), json.dumps(LENGTHS)),
    ]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_they_take_the_step_of_one(folder, done, tmp_path):
    assert done.returncode == 0, done.stderr
    logs, gradients = torch.load(folder / "step.pt", weights_only=True)
    rows = Rows(tiny.examples(LENGTHS), "prompt")
    made = tiny.trainer(tmp_path, tiny.gpt2(), rows, batch_size=8, held_out={HELD_OUT: rows})
    kept = tiny.Kept()
    made.observers.append(kept)
    tiny.assert_same((logs, gradients), tiny.step_gradients(made))
    assert logs["second"] == pytest.approx(kept.rows[1]["loss"], rel=1e-5)
    assert logs["eval_loss"] == pytest.approx(made.evaluate()["eval_loss"], rel=1e-5)
    # Two processes wrote one checkpoint, with the random state of both.
    written = {path.name for path in (folder / "checkpoint-2").iterdir()}
    assert {"model.safetensors", "rng_state_0.pth", "rng_state_1.pth"} <= written


def test_the_command_writes_the_run_of_one(folder, done, tmp_path):
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder / 'run'}\n{folder / 'pretrained'}\n"
    assert "processes 2" in done.stderr
    one = train(tiny.config(tmp_path, train={"batch_size": 4}), QUIET)
    assert tiny.trace(folder / "run") == pytest.approx(tiny.trace(one), rel=1e-4)
    assert load_template(folder / "run") == CHAT


def test_pretraining_writes_the_run_of_one(folder, done, tmp_path):
    assert done.returncode == 0, done.stderr
    one = pretrain(load_config(PretrainConfig, write_pretraining(tmp_path, batch=8), ()), QUIET)
    found, wanted = (
        tiny.trace(run, "loss", "losses.jsonl") for run in (folder / "pretrained", one)
    )
    assert found == pytest.approx(wanted, rel=1e-4)
    for written in (one, folder / "pretrained"):
        assert step_folder(written, 4).is_dir()
        assert load_template(written) == CHAT
