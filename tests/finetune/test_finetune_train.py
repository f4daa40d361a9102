"""`finetune train`: a run from rows to a model one chats with."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import tiny_finetune as tiny
import torch
from full_disk import full_after
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from chatapp.dialogue.events import Options
from chatapp.dialogue.turn import answer
from chatapp.engine.model import Sampling
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import used_models
from chatapp.prompting.template import ALPACA, load_template
from finetune.cli import app
from finetune.config.sections import ConfigError
from finetune.run import train
from finetune.training.checkpoints import SaveError, last_checkpoint
from finetune.training.loop import NotFinite
from finetune.training.setup import set_up_run

QUIET = Console(stderr=True, quiet=True)


def test_a_run_is_a_model_that_chats_in_its_template(tmp_path):
    prompts = ["What comes after [red]3?"]
    config = tiny.config(
        tmp_path,
        data={"template": "alpaca", "packing": True},
        train={"epochs": 6, "save_every": 10},
        samples={"prompts": prompts, "max_tokens": 8},
    )
    console = Console(file=open(tmp_path / "told", "w"), width=200)  # noqa: SIM115
    run = train(config, console)
    assert load_template(run) == ALPACA
    trained, expected = load_model(str(run)), load_file(run / "model.safetensors")
    assert any(
        not torch.equal(expected[k], v)
        for k, v in load_file(tmp_path / "base" / "model.safetensors").items()
    )
    events = list(answer(trained, ALPACA, "What comes after 3?", Options(Sampling(max_tokens=9))))
    assert events[-1].reason in ("stop", "length")
    AutoModelForCausalLM.from_pretrained(run)
    AutoTokenizer.from_pretrained(run)

    rows = tiny.rows_of(run)
    steps = [row for row in rows if "l3" in row]
    measured = [row for row in rows if "eval_loss" in row]
    result = json.loads((run / "result.json").read_text())
    assert [row["step"] for row in steps] == list(range(1, result["steps"] + 1))
    for row in steps:
        assert row["l3"] == pytest.approx(row["l2"] + 0.25 * row["l1"], rel=1e-5)
        assert row["tokens_per_second"] > 0 < row["memory_bytes"]
    assert measured[-1]["eval_loss"] < measured[0]["eval_loss"]
    assert [r["step"] for r in rows if "samples" in r] == [row["step"] for row in measured]
    (sample,) = next(row["samples"] for row in rows if "samples" in row)
    assert sample["prompt"] == prompts[0]

    told = (tmp_path / "told").read_text()
    assert "template alpaca" in told
    record = json.loads((run / "run.json").read_text())
    assert record["template"]["name"] == "alpaca"
    assert len(record["data"][str(tmp_path / "rows.json")]) == 64
    assert {"torch", "transformers", "chatapp"} <= record["versions"].keys()
    report = (run / "report.md").read_text()
    assert f"{result['eval_loss']:.4f}" in report
    assert r"after \[red\]3?" in report
    assert not list(run.glob("unfinished*"))
    assert not (run / "training_args.bin").exists()


def test_the_best_checkpoint_is_kept_and_early_stop_ends_the_run(tmp_path):
    # A rate this high soon makes the model worse.
    config = tiny.config(
        tmp_path,
        data={"held_out": 0.4},
        train={"epochs": 30, "learning_rate": 0.3, "save_every": 2, "early_stop": 2,
               "schedule": "constant", "warmup": 0.0},
    )  # fmt: skip
    run = train(config, QUIET)
    result = json.loads((run / "result.json").read_text())
    rows = tiny.rows_of(run)
    losses = {row["step"]: row["eval_loss"] for row in rows if "eval_loss" in row}
    best = min(losses, key=lambda step: losses[step])
    assert result["best_step"] == best
    assert result["steps"] == best + 4 < 30
    assert result["eval_loss"] == pytest.approx(losses[best], rel=1e-6)
    kept = load_file(run / f"checkpoint-{best}" / "model.safetensors")
    published = load_file(run / "model.safetensors")
    assert all(torch.equal(published[name], value) for name, value in kept.items())


def test_a_full_disk_is_told_in_words(tmp_path, monkeypatch):
    def full(*_):
        raise RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0")

    monkeypatch.setattr("finetune.training.loop.save_random_state", full)
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(100, 100, 0))
    with pytest.raises(SaveError, match=r"could not be written: the disk is full; there is none"):
        train(tiny.config(tmp_path), QUIET)


def test_weights_that_are_no_numbers_stop_the_run_and_name_the_batch(tmp_path):
    config = tiny.config(tmp_path)
    path = tmp_path / "base" / "model.safetensors"
    weights = load_file(path)
    weights["transformer.wpe.weight"][11] = 3e38  # a number, whose square is none
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(NotFinite, match=r"loss is nan at step 1; .*bad_batch\.jsonl; there is no"):
        train(config, QUIET)
    bad = (tmp_path / "run" / "bad_batch.jsonl").read_text().splitlines()
    assert len(bad) == 8
    assert "What comes after" in json.loads(bad[0])["text"]


def test_a_step_that_spoils_the_weights_is_never_a_checkpoint(tmp_path):
    # The step itself has finite losses and gradients; what it makes of the weights has not.
    config = tiny.config(
        tmp_path, train={"learning_rate": 1e30, "save_every": 1, "schedule": "constant"}
    )
    with pytest.raises(NotFinite, match=r"held-out loss is nan after step (\d); .*bad_batch"):
        train(config, QUIET)
    checkpoint = last_checkpoint(tmp_path / "run")
    kept = load_file(checkpoint / "model.safetensors") if checkpoint else {}
    assert all(value.abs().max() < 1e6 for value in kept.values())


def test_a_folder_that_another_run_has_filled_meanwhile_is_refused(tmp_path, monkeypatch):
    config = tiny.config(tmp_path, train={"max_steps": 1})

    def set_up_late(*given, **named):
        setup = set_up_run(*given, **named)
        with monkeypatch.context() as patch:
            patch.setattr("finetune.run.set_up_run", set_up_run)
            train(config, QUIET)
        return setup

    monkeypatch.setattr("finetune.run.set_up_run", set_up_late)
    with pytest.raises(ConfigError, match="holds other files; name a new or an empty folder"):
        train(config, QUIET)
    run = Path(config.output)
    assert train(config, QUIET) == run, "it is finished"
    os.utime(run / "result.json", (2**32, 2**32))
    with pytest.raises(ConfigError, match="holds a run already"):
        train(config, QUIET)  # by a clock that was ahead: nobody knows what changed since


def test_the_commands_and_their_exit_status(tmp_path, monkeypatch):
    path = tiny.written(tiny.config(tmp_path, train={"method": "lora"}), tmp_path / "config.toml")
    run, runner = str(tmp_path / "run"), CliRunner()
    with monkeypatch.context() as patch:
        tiny.at_step(patch, 4, lambda: os.kill(os.getpid(), signal.SIGINT))
        done = runner.invoke(app, ["train", str(path)])
    assert (done.exit_code, done.stdout) == (130, "")
    assert "`finetune resume" in done.stderr
    assert used_models()[0] == Path(run), "an unfinished run is known as well"
    done = runner.invoke(app, ["train", str(path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "holds a run already" in done.stderr
    with full_after(500):
        done = runner.invoke(app, ["train", str(path), f"output={tmp_path / 'full'}"])
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (
        1,
        f"{tmp_path / 'full' / 'run.json'}: File too large",
    )
    done = runner.invoke(app, ["resume", run])
    assert (done.exit_code, done.stdout) == (0, f"{run}\n"), done.stderr
    done = runner.invoke(app, ["merge", run, str(tmp_path / "merged")])
    assert (done.exit_code, done.stdout) == (0, f"{tmp_path / 'merged'}\n")
    assert used_models()[:2] == [tmp_path / "merged", Path(run)]  # `chatapp models list` has them
    done = runner.invoke(app, ["merge", run, str(tmp_path / "merged")])
    assert done.exit_code == 2
    done = runner.invoke(app, ["train", str(path), f"output={tmp_path / 'a'}", "train.epoch=1"])
    assert done.exit_code == 2
    assert "did you mean 'train.epochs'" in done.stderr
    done = runner.invoke(
        app, ["train", str(path), f"output={tmp_path / 'a'}", "train.learning_rate=1e30"]
    )
    assert done.exit_code == 1
    assert "bad_batch.jsonl" in done.stderr
    assert "Traceback" not in done.stderr
    with monkeypatch.context() as patch:
        patch.setattr("finetune.run.set_up_run", tiny.raising(KeyboardInterrupt()))
        done = runner.invoke(app, ["train", str(path), f"output={tmp_path / 'b'}"])
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [({"avx512_bf16": True}, "float32"), ({"amx_bf16": True}, "bfloat16"), ({}, "float32")],
)
def test_auto_takes_bfloat16_on_a_cpu_where_it_is_faster(
    tmp_path, monkeypatch, capabilities, expected
):
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: capabilities)
    setup = set_up_run(tiny.config(tmp_path, train={"precision": "auto"}), "cpu")
    assert (setup.precision, setup.device) == (expected, "cpu")
