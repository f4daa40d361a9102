"""Runs that learn from feedback: trained, gone on with, measured, and made of what was said."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import tiny_finetune as tiny
import torch
from rich.console import Console
from safetensors.torch import load_file

from chatapp.dialogue.best_of import ReplyScorer, closed_ids
from chatapp.dialogue.feedback import FeedbackFormat
from chatapp.prompting.messages import Message
from finetune.check import examine, show
from finetune.config import ConfigError, FinetuneConfig, load_config
from finetune.data.chats import ChatEncoder
from finetune.evaluation import evaluate
from finetune.feedback import choose, write_configuration
from finetune.objectives.reference import REFERENCE_FILE
from finetune.run import train

QUIET = Console(stderr=True, quiet=True)


def judged(path: Path, count: int = 40) -> Path:
    rows = [
        {"prompt": f"What comes after {n}?", "chosen": f"{n + 1} comes after.", "rejected": "User"}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def config(folder: Path, kind: str, **train: Any) -> FinetuneConfig:
    rows = judged(folder / "judged.jsonl")
    return tiny.config(
        folder, data={"train": str(rows), "held_out": 0.3}, objective={"kind": kind}, train=train
    )


@pytest.mark.parametrize(
    ("kind", "method"),
    [("dpo", "full"), ("dpo", "lora"), ("kto", "lora"), ("orpo", "full"), ("reward", "lora")],
)
def test_a_run_learns_what_is_preferred_and_is_measured(
    tmp_path: Path, kind: str, method: str
) -> None:
    folder = train(config(tmp_path, kind, method=method, epochs=4), QUIET, "cpu")
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    first = next(row for row in log if "margin" in row)
    if kind in ("dpo", "kto"):  # the reference is the model that it begins with
        assert first["margin"] == pytest.approx(0, abs=1e-4)
    measured = evaluate(str(folder), str(folder), "", 0, 8, lambda *_: None, "cpu").sets["held_out"]
    assert measured.figures["accuracy"] > 0.9
    low, high = measured.intervals["accuracy"]
    assert low < measured.figures["accuracy"] <= high + 1e-9
    assert measured.figures["margin"] > 0
    result = json.loads((folder / "result.json").read_text())
    if kind != "kto":  # which learns from verdicts and is measured on pairs
        assert measured.figures["margin"] == pytest.approx(result["eval_margin"], rel=1e-3)


def test_the_reference_is_kept_and_computed_anew_when_it_is_gone(tmp_path: Path) -> None:
    settings = config(tmp_path, "dpo")
    folder = train(settings, QUIET, "cpu")
    kept = load_file(folder / REFERENCE_FILE)
    assert all(torch.isfinite(each).all() and (each <= 0).all() for each in kept.values())
    other = train(settings.model_copy(update={"output": str(tmp_path / "other")}), QUIET, "cpu")
    for name, each in load_file(other / REFERENCE_FILE).items():
        torch.testing.assert_close(each, kept[name])


@pytest.mark.parametrize("kind", ["dpo", "kto", "reward"])
def test_check_shows_pairs_side_by_side(tmp_path: Path, kind: str) -> None:
    console = Console(file=StringIO(), record=True, width=160)
    found = examine(config(tmp_path, kind), "cpu")
    show(found, console)
    text = console.export_text()
    assert ("good: " in text) == (kind == "kto")
    assert ("chosen · " in text) == (kind != "kto")
    assert "⟦" in text
    assert ("desirable" in found.document()) == (kind == "kto")


def test_dropout_that_would_blur_the_ratio_is_refused(tmp_path: Path) -> None:
    settings = config(tmp_path, "dpo", method="lora")
    adapter = settings.adapter.model_copy(update={"dropout": 0.1})
    with pytest.raises(ConfigError, match=r"adapter\.dropout is 0\.1"):
        train(settings.model_copy(update={"adapter": adapter}), QUIET, "cpu")


@pytest.mark.parametrize("make", [tiny.base, tiny.chatml_base], ids=["own", "Jinja"])
def test_a_reply_is_scored_on_the_tokens_that_were_learnt(tmp_path: Path, make: Any) -> None:
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


SAID = {
    FeedbackFormat.DPO: [
        {
            "prompt": [{"role": "user", "content": f"Who {n}?"}],
            "chosen": [{"role": "assistant", "content": "Me."}],
            "rejected": [{"role": "assistant", "content": "You."}],
        }
        for n in range(12)
    ],
    FeedbackFormat.SFT: [],
    FeedbackFormat.KTO: [],
}


def test_feedback_becomes_a_configuration_that_can_be_checked(tmp_path: Path) -> None:
    base = tiny.base(tmp_path / "base")
    lesson = choose(SAID)
    assert lesson.words == "preferences"
    path = write_configuration(lesson, SAID[lesson.format], str(base), tmp_path / "new")
    settings = load_config(FinetuneConfig, path, [])
    assert settings.objective.kind == "dpo"
    assert examine(settings, "cpu").kept == 12
    with pytest.raises(ConfigError, match="is there already"):
        write_configuration(lesson, SAID[lesson.format], str(base), tmp_path / "new")


def test_too_little_feedback_says_how_much_is_needed() -> None:
    few = {**SAID, FeedbackFormat.DPO: SAID[FeedbackFormat.DPO][:3]}
    with pytest.raises(ConfigError, match="3 preferences of 8, 0 corrections of 8, 0 verdicts"):
        choose(few)
    one_sided = {**few, FeedbackFormat.KTO: [{"label": True}] * 40}
    with pytest.raises(ConfigError, match="a quarter bad"):
        choose(one_sided, FeedbackFormat.KTO)
