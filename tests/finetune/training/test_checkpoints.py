"""Checkpoints: a damaged one is seen before it is continued."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_finetune as tiny
import torch
from accelerate import Accelerator
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM

from chatapp.dialogue.writers.choosing import choose_template
from chatapp.engine.models.loading import load_model
from finetune.config.sections import ConfigError
from finetune.evaluation import compare
from finetune.run import train
from finetune.training.checkpoints import (
    LOCK_FILE,
    Learner,
    check_whole,
    checkpoints_of,
    claim,
    drop_optimizer_states,
    last_checkpoint,
)

ROOT = Path(__file__).parents[3]


def test_a_changed_byte_of_an_optimizer_is_seen(tmp_path):
    torch.save({"moments": torch.ones(1000)}, tmp_path / "optimizer.pt")
    check_whole(tmp_path)
    content = bytearray((tmp_path / "optimizer.pt").read_bytes())
    content[content.index(torch.ones(100).numpy().tobytes()) + 9] ^= 1
    (tmp_path / "optimizer.pt").write_bytes(content)
    with pytest.raises(ConfigError, match=r"optimizer\.pt: is damaged: .* checksum"):
        check_whole(tmp_path)


@pytest.mark.parametrize("kind", ["gpt_neox", "mixtral"])
def test_weights_that_are_stored_by_older_names_are_read(tmp_path, kind):
    config = AutoConfig.for_model(
        kind,
        **{"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"intermediate_size": 16, "num_key_value_heads": 2, "tie_word_embeddings": False},
    )
    model = AutoModelForCausalLM.from_config(config)
    parts = {"called": model, "optimizer": None, "accelerator": Accelerator(cpu=True)}
    objective = SimpleNamespace(added="", save=lambda *_: None, load=lambda *_: None)
    learner = Learner(model, objective=objective, **parts)
    learner.save_weights(tmp_path)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        for weight in model.parameters():
            weight += 1
    learner.load_weights(tmp_path)
    assert all(torch.equal(before[name], kept) for name, kept in model.state_dict().items())


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_checkpoint_is_a_model(tmp_path, method):
    tiny.chatml_base(tmp_path / "base")
    tiny.pairs(tmp_path / "rows.json")
    config = tiny.config(tmp_path, train={"method": method, "epochs": 1})
    run = train(config, Console(quiet=True))
    checkpoint = last_checkpoint(run)
    assert checkpoint is not None
    own, its = (choose_template(load_model(str(each)), "") for each in (run, checkpoint))
    assert own.fingerprint == its.fingerprint
    done, then = compare([str(run), str(checkpoint)], "", 0, 8, lambda *_: None)
    assert done.sets["held_out"].figures == pytest.approx(then.sets["held_out"].figures, rel=1e-5)


def test_a_folder_is_written_by_one_process_until_it_ends(tmp_path):
    folder = tmp_path / "run"
    script = (
        "import os, sys; from pathlib import Path;"
        "from finetune.training.checkpoints import claim;"
        "held = claim(Path(sys.argv[1])); held.__enter__();"
        "print('held', flush=True); sys.stdin.read(); os._exit(9)"
    )
    command = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match="another process is writing this run"), claim(folder):
            pass
        other.communicate("")
    with claim(folder):  # the other one was killed
        assert (folder / LOCK_FILE).exists()
    assert list(folder.iterdir()) == []


def test_a_folder_with_another_name_is_no_checkpoint(tmp_path):
    for name in ("checkpoint-best", "checkpoint-3", "checkpoint-20", "checkpoint-4.old"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-30").write_text("a file")
    assert [path.name for path in checkpoints_of(tmp_path)] == ["checkpoint-3", "checkpoint-20"]
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-20"
    drop_optimizer_states(tmp_path)
