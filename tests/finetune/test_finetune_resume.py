"""`finetune resume`: a run interrupted in every way and continued, and runs that are refused."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import tiny_finetune as tiny
import torch
from fakes import reworded
from rich.console import Console
from safetensors.torch import load_file, save_file

from chatapp.prompting.template import CHAT
from finetune.config.sections import ConfigError, Interrupted
from finetune.run import resume, train
from finetune.training.checkpoints import SaveError, save_random_state
from finetune.training.loop import NotFinite
from finetune.training.record import check_unchanged

QUIET = Console(stderr=True, quiet=True)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    with pytest.MonkeyPatch.context() as patch:
        tiny.at_step(patch, 8, tiny.raising(tiny.Killed()))
        with pytest.raises(tiny.Killed):
            train(tiny.saved_config(folder, train={"max_steps": 9}), QUIET)
    return folder / "run"


def test_an_interrupt_saves_and_says_how_to_go_on(tmp_path, monkeypatch):
    whole = train(tiny.saved_config(tmp_path, output=str(tmp_path / "whole")), QUIET)
    config = tiny.saved_config(tmp_path)
    handlers = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        tiny.at_step(patch, 5, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted, match=r"step 5; checkpoint-5 is whole: `finetune resume"):
            train(config, QUIET)
    assert signal.getsignal(signal.SIGINT) is handlers
    assert not (tmp_path / "run" / "config.json").exists()
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    record["config"]["train"]["watch"] = False  # as older versions wrote, without a digest
    del record["digest"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    resume(tmp_path / "run", [], QUIET)
    assert tiny.trace(tmp_path / "run") == pytest.approx(tiny.trace(whole), abs=1e-6)
    with pytest.raises(ConfigError, match="finished"):
        resume(tmp_path / "run", [], QUIET)
    resume(tmp_path / "run", ["train.epochs=3"], QUIET)
    assert len(tiny.trace(tmp_path / "run")) > len(tiny.trace(whole))


def test_a_second_interrupt_stops_at_once_and_names_the_checkpoint_there_is(tmp_path, monkeypatch):
    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    for step, words in (
        (2, "there is no checkpoint yet: `finetune resume .*` begins again"),
        (5, "checkpoint-3 is whole: `finetune"),
    ):
        config = tiny.saved_config(tmp_path, output=str(tmp_path / f"run{step}"))
        with monkeypatch.context() as patch:
            tiny.at_step(patch, step, twice)
            with pytest.raises(Interrupted, match=f"stopped at once; {words}"):
                train(config, QUIET)


def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path, monkeypatch):
    def full(folder, accelerator):
        save_random_state(folder, accelerator)
        if folder.name == "checkpoint-6":
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("finetune.training.loop.save_random_state", full)
        with pytest.raises(SaveError, match=r"step 6 .* No space left .* checkpoint-3 is whole"):
            train(tiny.saved_config(tmp_path), QUIET)
    assert not (tmp_path / "run" / "unfinished").exists()
    whole = train(tiny.saved_config(tmp_path, output=str(tmp_path / "whole")), QUIET)
    resume(tmp_path / "run", [], QUIET)
    assert tiny.trace(tmp_path / "run") == pytest.approx(tiny.trace(whole), abs=1e-6)


def test_a_run_that_diverged_is_gone_on_with_at_a_lower_rate(tmp_path):
    config = tiny.saved_config(
        tmp_path, train={"learning_rate": 1e30, "save_every": 1, "warmup": 0.9, "epochs": 3}
    )
    run = tmp_path / "run"
    settings = config.train.model_copy(update={"learning_rate": 1e-3})
    train(config.model_copy(update={"output": str(tmp_path / "gentle"), "train": settings}), QUIET)
    (tmp_path / "gentle").rename(run)
    for name in ("result.json", "model.safetensors", "config.json"):
        (run / name).unlink()
    record = json.loads((run / "run.json").read_text())
    record["config"]["train"]["learning_rate"] = 1e30
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"run\.json: was changed since the run began"):
        resume(run, ["train.epochs=4"], QUIET)
    del record["digest"]
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"learning_rate = 1e\+30, not 0\.001"):
        resume(run, ["train.learning_rate=0.001", "train.epochs=4"], QUIET)
    with pytest.raises(NotFinite, match=r"resume .*run train\.learning_rate=RATE` .* lower rate"):
        resume(run, ["train.epochs=4"], QUIET)
    resume(run, ["train.learning_rate=0.001", "train.epochs=4"], QUIET)
    rates = [
        json.loads(text)["learning_rate"]
        for text in (run / "log.jsonl").read_text().splitlines()
        if "learning_rate" in text
    ]
    assert 0 < rates[-1] <= 0.001
    assert not (run / "bad_batch.jsonl").exists()


def test_a_damaged_checkpoint_is_refused_and_the_one_before_can_be_gone_on_with(killed, tmp_path):
    checkpoint = shutil.copytree(killed, tmp_path / "run") / "checkpoint-6"
    for name in ("optimizer.pt", "rng_state.pth", "trainer_state.json", "model.safetensors"):
        whole = (checkpoint / name).read_bytes()
        (checkpoint / name).write_bytes(whole[:40])
        with pytest.raises(ConfigError, match=rf"{re.escape(name)}: is damaged: .*checkpoint-6"):
            resume(tmp_path / "run", [], QUIET)
        (checkpoint / name).write_bytes(whole)
    shutil.rmtree(checkpoint)
    assert resume(tmp_path / "run", [], QUIET) == tmp_path / "run"


def test_another_run_is_refused_and_what_differs_is_named(tmp_path, monkeypatch):
    config = tiny.saved_config(tmp_path)
    tiny.at_step(monkeypatch, 4, tiny.raising(tiny.Killed()))
    with pytest.raises(tiny.Killed):
        train(config, QUIET)
    run = Path(config.output)
    with pytest.raises(ConfigError, match=r"holds a run already; `finetune resume"):
        train(config, QUIET)
    for override, words in (
        ("objective.aux_weight=0.5", r"objective\.aux_weight = 0\.25, not 0\.5"),
        ("train.learning_rate=0.1", r"train\.learning_rate = 0\.01, not 0\.1"),
        ("data.template=alpaca", r"data\.template = '', not 'alpaca'"),
        ("nonsense=1", "'nonsense' is not a key of a configuration"),
    ):
        with pytest.raises(ConfigError, match=words):
            resume(run, [override], QUIET)
    with pytest.raises(ConfigError, match=r"no run\.json"):
        resume(tmp_path, [], QUIET)

    rows = (tmp_path / "rows.json").read_text()
    (tmp_path / "rows.json").write_text(rows.replace("31 comes", "32 comes"))
    with pytest.raises(ConfigError, match=r"the data changed .*rows\.json"):
        resume(run, [], QUIET)
    (tmp_path / "rows.json").write_text(rows)

    edited = reworded(CHAT, user_marker="Human:")
    (tmp_path / "base" / "chatapp_template.json").write_text(json.dumps(edited.to_dict()))
    with pytest.raises(ConfigError, match=r"the template changed: .* now it is"):
        resume(run, [], QUIET)
    (tmp_path / "base" / "chatapp_template.json").write_text(json.dumps(CHAT.to_dict()))

    weights = tmp_path / "base" / "model.safetensors"
    other = {name: value + 1 for name, value in load_file(weights).items()}
    save_file(other, weights, {"format": "pt"})
    with pytest.raises(ConfigError, match="other weights"):
        resume(run, [], QUIET)
    record = json.loads((run / "run.json").read_text())
    with pytest.raises(ConfigError, match="1 processes, now there are 2"):
        check_unchanged(run, record, record | {"processes": 2})
    with pytest.raises(ConfigError, match="float32, this machine would use bfloat16"):
        check_unchanged(run, record, record | {"precision": "bfloat16"})


def test_a_run_is_gone_on_with_from_another_folder_on_another_machine(tmp_path, monkeypatch):
    """Relative paths, a base that moved, another choice of precision: none changes a number."""
    for name in ("here", "whole", "elsewhere"):
        (tmp_path / name).mkdir()
    places = {"model": "base", "output": "run"}
    settings = {"data": {"train": "rows.json"}, "train": {"precision": "auto"}}
    for name in ("here", "whole"):
        monkeypatch.chdir(tmp_path / name)
        config = tiny.saved_config(tmp_path / name, **places, **settings)
        if name == "whole":
            train(config, QUIET)
            continue
        with monkeypatch.context() as broken:
            tiny.at_step(broken, 4, tiny.raising(tiny.Killed()))
            with pytest.raises(tiny.Killed):
                train(config, QUIET)
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = tmp_path / "here" / "run"
    (tmp_path / "here" / "base").rename(tmp_path / "elsewhere" / "moved")
    monkeypatch.setattr("finetune.training.setup.products_precision", lambda wanted, _: wanted)
    with pytest.raises(ConfigError, match=r"base.*; a model that was moved is named by .* model="):
        resume(run, [], QUIET)
    resume(run, ["model=moved"], QUIET)
    assert tiny.trace(run) == tiny.trace(tmp_path / "whole" / "run")
    kept, whole = (
        json.loads((folder / "run.json").read_text())["precision"]
        for folder in (run, tmp_path / "whole" / "run")
    )
    assert kept == whole  # what the machine of its beginning chose

    (tmp_path / "here" / "rows.json").rename(tmp_path / "elsewhere" / "others.json")
    moved = ["model=moved", "data.train.0.path=others.json", "train.epochs=3"]
    with pytest.raises(ConfigError, match=r"data\.train .*weight"):
        resume(run, [*moved, "data.train.0.weight=2.0"], QUIET)
    resume(run, moved, QUIET)
    assert json.loads((run / "result.json").read_text())["steps"] == 12


def fifo(file):
    file.unlink()
    os.mkfifo(file)


def keeping(file, **values):
    file.write_text(json.dumps({**json.loads(file.read_text()), "digest": "", **values}))


def with_tensors(file, change):
    kept = torch.load(file, weights_only=True)
    change(kept)
    torch.save(kept, file)


def shrink(state):
    state["state"][0]["exp_avg"] = torch.zeros(1)


STATE, RUN = "checkpoint-6/trainer_state.json", "run.json"
DAMAGE = {
    "folder": (lambda run: keeping(run / RUN, folder=0), r"'folder' is the number 0, exp"),
    "day": (lambda run: keeping(run / RUN, begun="2026-13-99"), r"'begun' month must be"),
    "template": (lambda run: keeping(run / RUN, template=10**400), r"'template' is the number"),
    "data": (lambda run: keeping(run / RUN, data=[[]]), r"'data' is a list, expected a table"),
    "precision": (lambda run: keeping(run / RUN, precision="x"), r"'precision' is the string 'x'"),
    "pipe": (lambda run: fifo(run / RUN), r"run\.json: cannot be read: it is not a regular file"),
    "step": (lambda run: keeping(run / STATE, global_step=10**18), r"is not of checkpoint-6"),
    "best": (lambda run: keeping(run / STATE, best_global_step=9), r"is not of checkpoint-6"),
    "metric": (lambda run: keeping(run / STATE, best_metric=[1]), r"'best_metric' is a list"),
    "weights": (
        lambda run: save_file({"x": torch.zeros(1)}, run / "checkpoint-6/model.safetensors"),
        r"checkpoint-6: is not of this run: it does not have all weights; remove checkpoint-6",
    ),
    "optimizer": (
        lambda run: with_tensors(run / "checkpoint-6/optimizer.pt", shrink),
        r"is not of this run: the optimizer's state has other shapes",
    ),
    "draws": (
        lambda run: torch.save({}, run / "checkpoint-6/rng_state.pth"),
        r"is not of this run: 'python'",
    ),
    "code": (
        lambda run: torch.save(Path("x"), run / "checkpoint-6/optimizer.pt"),
        r"is not of this run: it has objects that no checkpoint has; remove",
    ),
    "optimizer pipe": (
        lambda run: fifo(run / "checkpoint-6/optimizer.pt"),
        r"optimizer\.pt: is damaged: it is not a regular file",
    ),
    "result": (
        lambda run: (run / "result.json").write_text('{"steps": "x"}'),
        r"result\.json: 'steps' is the string 'x', expected a whole number",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_a_run_wrote_and_does_not_fit_it_is_a_sentence(killed, tmp_path, name):
    damage, sentence = DAMAGE[name]
    damage(run := shutil.copytree(killed, tmp_path / "run"))
    with pytest.raises(ConfigError, match=sentence):
        resume(run, ["train.max_steps=12"], QUIET)


def test_the_settings_of_an_optimizer_are_the_runs(killed, tmp_path):
    run = shutil.copytree(killed, tmp_path / "run")

    def loosen(state):
        state["param_groups"][0] |= {"lr": "x", "betas": None, "weight_decay": 1e9}

    with_tensors(run / "checkpoint-6/optimizer.pt", loosen)
    resume(run, [], QUIET)
    assert max(tiny.trace(run).values()) < 10
