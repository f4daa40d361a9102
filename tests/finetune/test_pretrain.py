"""A tiny run from text to a model folder, interrupted and continued."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny_finetune as tiny
import torch
from rich.console import Console
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from chatapp.engine.models.resolving import kept_steps, step_folder
from chatapp.prompting.template import CHAT, load_template
from finetune.config.sections import ConfigError, PretrainConfig
from finetune.measuring.learning import watched_steps
from finetune.pretrain import pretrain

QUIET = Console(stderr=True, quiet=True)


def config(folder, **train):
    folder.mkdir(exist_ok=True)
    corpus = folder / "corpus.jsonl"
    if not corpus.exists():
        rows = [{"text": f"The number {i} comes after the number {i - 1}."} for i in range(320)]
        corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PretrainConfig.model_validate(
        {
            "output": str(folder / "run"),
            "data": {"train": [{"path": str(corpus)}], "held_out": 0.1},
            "shape": {"vocabulary": 280, "layers": 2, "heads": 2, "hidden": 16, "positions": 32},
            "train": {
                "batch_size": 8,
                "learning_rate": 0.01,
                "precision": "float32",
                "save_every": 5,
                "log_every": 1,
                "watch": False,
                **train,
            },
        }
    )


def losses(folder):
    return tiny.trace(folder, "loss", "losses.jsonl")


def test_a_run_is_a_model_transformers_loads(tmp_path):
    folder = pretrain(config(tmp_path), QUIET)
    trace = losses(folder)
    assert trace[max(trace)] < trace[1] - 0.5
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert next(model.parameters()).dtype == torch.float16
    text = "number 1234, User: it's"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    # The pieces of the saved file, digits alone: not those of GPT-2's own splitting.
    saved = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer(text)["input_ids"] == saved.encode(text).ids
    assert tokenizer.eos_token_id == model.config.eos_token_id == 0
    assert load_template(folder) == CHAT


def test_another_configuration_in_the_same_folder_is_refused(tmp_path):
    settings = config(tmp_path)
    folder = Path(settings.output)
    pretrain(settings, QUIET)
    other = config(tmp_path, learning_rate=0.02)
    with pytest.raises(ConfigError, match=r"train\.learning_rate = 0\.01, not 0\.02"):
        pretrain(other, QUIET)
    shutil.rmtree(folder)
    pretrain(other, QUIET)


def test_a_longer_run_begins_with_the_steps_before_the_decay(tmp_path):
    keys = {"schedule": "wsd", "save_every": 4, "watch": False}
    short = config(tmp_path / "short", **keys, max_steps=10)
    pretrain(short, QUIET)
    longer = pretrain(config(tmp_path / "longer", **keys, max_steps=20), QUIET)
    folder = Path(short.output)
    assert [losses(folder)[step] for step in range(1, 9)] == [
        losses(longer)[step] for step in range(1, 9)
    ]
    shutil.rmtree(folder / "checkpoint-10")
    pretrain(config(tmp_path / "short", **keys, max_steps=20), QUIET)
    assert losses(folder) == losses(longer)


def test_changed_documents_in_the_same_folder_are_refused(tmp_path, monkeypatch):
    settings = config(tmp_path)
    with monkeypatch.context() as patch:
        tiny.at_step(patch, 12, tiny.raising(tiny.Killed()))
        with pytest.raises(tiny.Killed):
            pretrain(settings, QUIET)
    corpus = tmp_path / "corpus.jsonl"
    text = corpus.read_text()
    record = Path(settings.output) / "pretrain.json"
    noted = json.loads(record.read_text())
    older = noted["config"] | {"digests": noted["data"]}  # as earlier versions wrote it
    corpus.write_text(text.replace("number 7 comes", "number 8 comes"))
    for written in (noted, older):
        record.write_text(json.dumps(written))
        with pytest.raises(ConfigError, match=r"the data changed since the run .*corpus\.jsonl"):
            pretrain(settings, QUIET)
    corpus.write_text(text)
    record.write_text(json.dumps(noted))
    with monkeypatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        with pytest.raises(ConfigError, match="1 processes, now there are 2"):
            pretrain(settings, QUIET)
    record.write_text(json.dumps(noted["config"]))  # the first versions recorded no digests
    assert pretrain(settings, QUIET) == Path(settings.output)
    assert json.loads(record.read_text()) == noted


def test_too_little_text_and_a_wrong_shape_are_errors(tmp_path):
    small = config(tmp_path)
    with pytest.raises(ConfigError, match="do not fill one window of 30000"):
        pretrain(
            small.model_copy(update={"shape": small.shape.model_copy(update={"positions": 30000})}),
            QUIET,
        )
    odd = small.model_copy(update={"shape": small.shape.model_copy(update={"heads": 3})})
    with pytest.raises(ConfigError, match="multiple of shape"):
        pretrain(odd, QUIET)


def test_watching_keeps_models_and_changes_nothing(tmp_path):
    watched = pretrain(config(tmp_path / "watched", watch=True), QUIET)
    blind = pretrain(config(tmp_path / "blind"), QUIET)
    assert losses(watched) == losses(blind)
    assert kept_steps(blind) == []
    last = max(losses(watched))
    assert kept_steps(watched) == sorted(watched_steps(last))

    rows = tiny.rows_of(watched, "losses.jsonl")
    learned = {row["step"]: row for row in rows if "heads" in row}
    assert list(learned) == kept_steps(watched)
    # The rows count: what comes next is soon known, so the loss falls from that of a random guess.
    assert learned[0]["window_loss"] == pytest.approx(math.log(280), abs=0.2)
    assert learned[last]["window_loss"] < learned[0]["window_loss"] - 0.5
    assert np.shape(learned[last]["heads"]["induction"]) == (2, 2)
    largest = np.max(learned[last]["heads"]["induction"])
    assert learned[last]["induction"] == pytest.approx(largest, abs=1e-4)
    assert learned[last]["samples"][0]["reply"]
    # The model of the last step is the finished one.
    for name, weight in load_file(watched / "model.safetensors").items():
        kept = load_file(step_folder(watched, last) / "model.safetensors")[name]
        assert torch.equal(kept, weight)


def test_a_text_file_holds_out_its_end(tmp_path):
    book = tmp_path / "book.txt"
    lines = [f"The number {i} comes after the number {i - 1}." for i in range(1, 320)]
    book.write_text("\n".join(lines))
    settings = config(tmp_path, max_steps=2)
    for train in (str(book), [str(book)], str(tmp_path / "folder")):
        (tmp_path / "folder").mkdir(exist_ok=True)
        shutil.copy(book, tmp_path / "folder" / "book.txt")
        data = PretrainConfig.model_validate(
            settings.model_dump() | {"data": {"train": train, "held_out": 0.1}}
        )
        folder = pretrain(data, QUIET)
        assert json.loads((folder / "result.json").read_text())["steps"] == 2
        assert json.loads((folder / "result.json").read_text())["held_out_loss"] > 0
        shutil.rmtree(folder)


def test_the_average_of_the_weights_is_kept_and_continued(tmp_path, monkeypatch):
    settings = {"max_steps": 16, "watch": True}
    plain = pretrain(config(tmp_path / "plain", **settings), QUIET)
    kept = pretrain(config(tmp_path / "kept", **settings, ema=0.8), QUIET)
    assert losses(kept) == losses(plain)  # the steps are the same

    def weight(folder):
        return load_file(folder / "model.safetensors")["transformer.h.0.mlp.c_fc.weight"].float()

    # The weights after each step are those of the plain run, of which some are kept.
    mean = weight(step_folder(plain, 0))
    for step in (1, 2, 3, 4):
        decay = min(0.8, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * weight(step_folder(plain, step))
    torch.testing.assert_close(weight(step_folder(kept, 4)), mean, atol=1e-3, rtol=1e-2)
    assert not torch.equal(weight(kept), weight(plain))
    assert torch.equal(weight(kept), weight(step_folder(kept, 16)))

    broken = config(tmp_path / "broken", **settings, ema=0.8)
    assert torch.equal(weight(tiny.broken_off(broken, monkeypatch, 12, pretrain)), weight(kept))
