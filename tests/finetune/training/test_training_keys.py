"""Steps, warmup, measuring, saving, the best weights, trackers, and the parts of an adapter."""

import json
from datetime import date

import pytest
import tiny_finetune as tiny
from rich.console import Console
from safetensors import safe_open
from transformers import AutoTokenizer

from chatapp.engine.models.loading import load_model
from chatapp.prompting.messages import Message, text_of
from chatapp.prompting.template import ALPACA, CHAT
from finetune.config.sections import ConfigError
from finetune.evaluation import evaluate
from finetune.run import resume, train
from finetune.sharing import merge
from finetune.training import record
from finetune.training.setup import set_up_run

QUIET = Console(stderr=True, quiet=True)


def result(run):
    found = json.loads((run / "result.json").read_text())
    return found


def test_steps_warmup_measuring_and_saving_are_counted_in_steps(tmp_path):
    settings = {"max_steps": 7, "warmup_steps": 3, "eval_every": 2, "save_every": 5}
    run = train(tiny.config(tmp_path, train={**settings, "schedule": "constant"}), QUIET)
    rows = tiny.rows_of(run)
    rates = {row["step"]: row["learning_rate"] for row in rows if "learning_rate" in row}
    assert [rates[step] for step in range(1, 8)] == pytest.approx(
        [0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01, 0.01]
    )
    losses = {row["step"]: row["eval_loss"] for row in rows if "eval_loss" in row}
    assert list(losses) == [2, 4, 6, 7]
    best = min(losses, key=losses.__getitem__)
    assert result(run)["best_step"] == best
    assert (run / f"checkpoint-{best}").is_dir()  # saved for being the best alone
    with pytest.raises(ConfigError, match=r"finished; set train\.max_steps higher"):
        resume(run, ["train.max_steps=7"], QUIET)
    resume(run, ["train.max_steps=9", "train.eval_every=9"], QUIET)
    assert result(run)["steps"] == 9


def test_the_best_weights_are_those_of_the_metric_asked_for(tmp_path):
    settings = {"metric_for_best_model": "exact_match", "epochs": 8, "eval_every": 4}
    run = train(tiny.config(tmp_path, train=settings, samples={"max_tokens": 12}), QUIET)
    found = {
        row["step"]: row["eval_exact_match"]
        for row in tiny.rows_of(run)
        if "eval_exact_match" in row
    }
    assert result(run)["eval_exact_match"] == max(found.values())
    assert found[result(run)["best_step"]] == max(found.values())
    measured = evaluate(str(run), str(run), "", 100, 12, lambda *_: None).sets["held_out"]
    assert measured.figures["exact_match"] == result(run)["eval_exact_match"]
    for metric, section in (("macro_f1", {}), ("pearson", {"head": {"task": "classification"}})):
        data = {"train": str(_labelled(tmp_path))} if section else {}
        config = tiny.config(
            tmp_path, output="-", data=data, train={"metric_for_best_model": metric}, **section
        )
        with pytest.raises(ConfigError, match=rf"is {metric}, which this run does not have"):
            train(config, QUIET)


def _labelled(folder):
    path = folder / "labelled.jsonl"
    rows = [{"text": f"after {i}", "label": "yes" if i % 2 else "no"} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("modules", ["lm_head", "ln_1"])
def test_an_adapter_has_the_layers_that_are_named(tmp_path, modules):
    adapter = {"targets": ["c_attn"], "modules_to_save": [modules]}
    train_settings = {"method": "lora", "max_steps": 3, "learning_rate": 0.05}
    run = train(tiny.config(tmp_path, train=train_settings, adapter=adapter), QUIET)
    with safe_open(run / "adapter_model.safetensors", "pt") as file:
        names = set(file.keys())
    assert {name.split(".")[-3] for name in names if ".lora_" in name} == {"c_attn"}
    assert any(f".{modules}.weight" in name for name in names)
    before = evaluate(str(run), str(run), "", 2, 4, lambda *_: None).sets["held_out"]
    merge(str(run), tmp_path / "whole")
    after = evaluate(str(tmp_path / "whole"), str(run), "", 2, 4, lambda *_: None).sets["held_out"]
    assert after.figures["loss"] == pytest.approx(before.figures["loss"], rel=1e-5)
    assert before.figures["loss"] == pytest.approx(result(run)["eval_loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        ({"targets": ["c_atn"]}, r"adapter\.targets: .* 'c_atn'; did you mean 'c_attn'"),
        ({"targets": ["lm_head"]}, r"adapter\.targets: there is no such layer as 'lm_head'"),
        ({"modules_to_save": ["lm_haed"]}, r"modules_to_save: .*did you mean 'lm_head'"),
    ],
)
def test_an_adapter_that_cannot_be_had_is_refused(tmp_path, adapter, words):
    with pytest.raises(ConfigError, match=words):
        train(tiny.config(tmp_path, train={"method": "lora"}, adapter=adapter), QUIET, "cpu")


def test_rounded_weights_do_not_learn_themselves(tmp_path):
    with pytest.raises(ConfigError, match=r"train\.method is full, expected one of lora"):
        train(tiny.config(tmp_path, adapter={"base_precision": "int8"}), QUIET)


def test_a_tracker_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("finetune.training.building.find_spec", lambda name: None)
    config = tiny.config(tmp_path, train={"report_to": ["trackio"]})
    with pytest.raises(ConfigError, match=r"report_to: trackio is not installed; pip install"):
        train(config, QUIET)
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize("template", [CHAT, ALPACA], ids=lambda each: each.name)
def test_transformers_chats_with_a_run_in_its_template(tmp_path, template):
    # The tokenizer of this base brings a chat template, which is not what is trained in.
    tiny.chatml_base(tmp_path / "base")
    tiny.pairs(tmp_path / "rows.json")
    config = tiny.config(tmp_path, data={"template": template.name}, train={"max_steps": 1})
    run = train(config, QUIET)
    chat = [Message("user", " hello "), Message("assistant", "yes"), Message("user", "{{ no }}")]
    rows = [{"role": message.role, "content": message.text} for message in chat]
    for folder in (run, run / "checkpoint-1"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        text = tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True)
        end = tokenizer.eos_token if template.wording.end_of_reply else ""
        expected = text_of(template.render(chat)).replace("<|endoftext|>", end)
        assert text == expected
    ids = tokenizer.apply_chat_template(rows, add_generation_prompt=True)["input_ids"]
    model = load_model(str(run))
    ours = [
        token
        for part in template.render(chat)
        for token in (
            [model.tokenizer.end_id] if part.kind == "end" else model.tokenizer.encode(part.text)
        )
    ]
    assert ids == ours


def test_a_template_that_writes_the_date_is_gone_on_with_on_another_day(tmp_path, monkeypatch):
    tiny.chatml_base(tmp_path / "base")
    names = json.loads((tmp_path / "base" / "tokenizer_config.json").read_text())
    names["chat_template"] = "{{ strftime_now('%d %b %Y') }}\n" + names["chat_template"]
    (tmp_path / "base" / "tokenizer_config.json").write_text(json.dumps(names))
    tiny.pairs(tmp_path / "rows.json")
    config = tiny.config(tmp_path, train={"max_steps": 2})
    run = train(config, QUIET)
    saved = json.loads((run / "run.json").read_text())
    assert record.begun_on(saved) == date.today()
    yesterday = set_up_run(config, begun=date(2024, 2, 29))
    text = yesterday.tokenizer.decode(yesterday.data.train.examples[0].ids.tolist())
    assert "29 Feb 2024" in text
    assert yesterday.record["data"] != saved["data"]
    saved |= {"begun": "2024-02-29", "data": yesterday.record["data"], "digest": ""}
    (run / "run.json").write_text(json.dumps(saved))
    resume(run, ["train.max_steps=3"], QUIET)
    assert json.loads((run / "run.json").read_text())["begun"] == "2024-02-29"
