"""Runs that learn from feedback: trained, continued, measured."""

import json

import pytest
import tiny_finetune as tiny
import torch
from preference_runs import config, judged
from rich.console import Console
from safetensors.torch import load_file

from chatapp.dialogue.reply_scores import ReplyScorer, closed_ids
from chatapp.prompting.messages import Message
from finetune.config.sections import ConfigError
from finetune.data.encoding import ChatEncoder
from finetune.evaluation import evaluate
from finetune.objectives.rows import REFERENCE_FILE
from finetune.run import train

QUIET = Console(stderr=True, quiet=True)


def test_verdicts_measure_a_run_that_learnt_from_them_and_no_other(tmp_path):
    verdicts = tmp_path / "verdicts.jsonl"
    rows = [
        {"prompt": f"What comes after {n}?", "completion": text, "label": text != "User"}
        for n in range(6)
        for text in (f"{n + 1} comes after.", "User")
    ]
    verdicts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs = {}
    for kind in ("kto", "dpo"):
        settings = config(tmp_path, kind, epochs=4)
        output = {"output": str(tmp_path / kind)}
        runs[kind] = str(train(settings.model_copy(update=output), QUIET, "cpu"))

    def measure(run):
        found = evaluate(run, run, str(verdicts), 2, 8, lambda *_: None, "cpu")
        return found.sets["verdicts.jsonl"]

    measured = measure(runs["kto"])
    assert measured.examples == 12
    assert measured.figures["accuracy"] > 0.9
    assert measured.figures["kl"] >= 0
    assert [answer.reference for answer in measured.answers] == ["1 comes after.", "2 comes after."]
    with pytest.raises(ConfigError, match=r"verdicts\.jsonl, line 1: 'chosen' is missing"):
        measure(runs["dpo"])


def test_the_reference_is_kept_and_computed_anew_when_it_is_gone(tmp_path):
    settings = config(tmp_path, "dpo")
    folder = train(settings, QUIET, "cpu")
    kept = load_file(folder / REFERENCE_FILE)
    assert all(torch.isfinite(each).all() and (each <= 0).all() for each in kept.values())
    other = train(settings.model_copy(update={"output": str(tmp_path / "other")}), QUIET, "cpu")
    for name, each in load_file(other / REFERENCE_FILE).items():
        torch.testing.assert_close(each, kept[name])


def test_dropout_that_would_blur_the_ratio_is_refused(tmp_path):
    settings = config(tmp_path, "dpo", method="lora")
    adapter = settings.adapter.model_copy(update={"dropout": 0.1})
    with pytest.raises(ConfigError, match=r"adapter\.dropout is 0\.1"):
        train(settings.model_copy(update={"adapter": adapter}), QUIET, "cpu")


@pytest.mark.parametrize("make", [tiny.base, tiny.chatml_base], ids=["own", "Jinja"])
def test_a_reply_is_scored_on_the_tokens_that_were_learnt(tmp_path, make):
    model = make(tmp_path / "base")
    rows = judged(tmp_path / "judged.jsonl")
    settings = tiny.config(
        tmp_path, data={"train": str(rows)}, objective={"kind": "reward"}, train={"epochs": 1}
    )
    folder = train(settings.model_copy(update={"model": str(model)}), QUIET, "cpu")
    scorer = ReplyScorer.load(str(folder))
    asked = [Message("user", "What comes after 3?")]
    encoder = ChatEncoder(scorer.template, scorer.model.tokenizer, scorer.model.start)
    (pieces,) = encoder.encode([*asked, Message("assistant", "4 comes after.")])
    ids = [id for piece in pieces for id in piece.ids]
    scored = closed_ids(scorer.template, scorer.model, asked, "4 comes after.")
    assert scored == ids[: len(scored)]
    assert scorer.model.tokenizer.decode(ids[len(scored) :]).strip() == ""
    assert isinstance(scorer.score(asked, "4 comes after."), float)
