"""Runs that learn from feedback: trained, continued, measured, and made from a chat."""

import json
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
import tiny_finetune as tiny
import torch
from rich.console import Console
from safetensors.torch import load_file
from typer.testing import CliRunner

from chatapp.cli import main
from chatapp.common.paths import database_path
from chatapp.dialogue.feedback import FeedbackFormat
from chatapp.dialogue.reply_scores import ReplyScorer, closed_ids
from chatapp.dialogue.store import Store
from chatapp.models.loading import load_model
from chatapp.prompting.messages import Message
from finetune.check import examine, show
from finetune.cli import app
from finetune.config.sections import ConfigError, FinetuneConfig, load_config
from finetune.data.encoding import ChatEncoder
from finetune.evaluation import evaluate
from finetune.feedback import choose, write_configuration, write_lesson
from finetune.measuring.results import SetResult
from finetune.objectives.reference import REFERENCE_FILE
from finetune.run import resume, train

QUIET = Console(stderr=True, quiet=True)
TITLES = {"dpo": "DPO", "kto": "KTO", "orpo": "ORPO", "reward": "Bradley-Terry"}


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
    report = (folder / "report.md").read_text()
    assert f"| step | {TITLES[kind]} | " in report
    assert "| held-out loss | held-out " in report
    assert "L2" not in report
    result = json.loads((folder / "result.json").read_text())
    if kind != "kto":  # which learns from verdicts and is measured on pairs
        assert measured.figures["margin"] == pytest.approx(result["eval_margin"], rel=1e-3)


def test_verdicts_measure_a_run_that_learnt_from_them_and_no_other(tmp_path: Path) -> None:
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

    def measure(run: str) -> SetResult:
        found = evaluate(run, run, str(verdicts), 2, 8, lambda *_: None, "cpu")
        return found.sets["verdicts.jsonl"]

    measured = measure(runs["kto"])
    assert measured.examples == 12
    assert measured.figures["accuracy"] > 0.9
    assert measured.figures["kl"] >= 0
    assert [answer.reference for answer in measured.answers] == ["1 comes after.", "2 comes after."]
    with pytest.raises(ConfigError, match=r"verdicts\.jsonl, line 1: 'chosen' is missing"):
        measure(runs["dpo"])


def test_the_reference_is_kept_and_computed_anew_when_it_is_gone(tmp_path: Path) -> None:
    settings = config(tmp_path, "dpo")
    folder = train(settings, QUIET, "cpu")
    kept = load_file(folder / REFERENCE_FILE)
    assert all(torch.isfinite(each).all() and (each <= 0).all() for each in kept.values())
    other = train(settings.model_copy(update={"output": str(tmp_path / "other")}), QUIET, "cpu")
    for name, each in load_file(other / REFERENCE_FILE).items():
        torch.testing.assert_close(each, kept[name])


@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_a_run_that_was_broken_off_goes_on_with_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    settings = config(tmp_path, kind)
    whole = train(settings.model_copy(update={"output": str(tmp_path / "whole")}), QUIET, "cpu")
    with monkeypatch.context() as patch:
        tiny.at_step(patch, 5, tiny.raising(tiny.Killed()))
        with pytest.raises(tiny.Killed):
            train(settings, QUIET, "cpu")
    # The weights have moved; the reference is still what the run began with.
    resume(tmp_path / "run", [], QUIET, "cpu")
    for key in (kind, "margin", "chosen_logp"):
        expected = tiny.trace(whole, key)
        assert tiny.trace(tmp_path / "run", key) == pytest.approx(expected, abs=1e-6)
    assert len(expected) > 6


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


# --- the commands ------------------------------------------------------------------------


def test_the_best_of_several_answers_is_the_one_that_scores_highest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(config(tmp_path, "reward"), QUIET, "cpu")
    question = "What comes after 3?"

    def ask(*options: str) -> tuple[int, str, str]:
        asked = ["ask", question, "--model", str(tmp_path / "base"), "--max-tokens", "8"]
        monkeypatch.setattr("sys.argv", ["chatapp", *asked, "--seed", "0", *options])
        monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO()))
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    best_of = ["--best-of", "10", "--reward", str(run), "--json"]
    status, out, told = ask(*best_of, "--temperature", "1")
    answer = json.loads(out)
    assert status == 0
    scorer = ReplyScorer.load(str(run))
    scores = {}
    for seed in range(10):  # each asked by itself
        alone = ask("--temperature", "1", "--seed", str(seed), "--json")[1]
        reply = json.loads(alone)["reply"].strip()
        scores[reply] = scorer.score([Message("user", question)], reply)
    assert len(scores) == 10
    assert answer["rewards"] == pytest.approx(sorted(scores.values(), reverse=True), abs=1e-4)
    assert answer["reply"].strip() == max(scores, key=lambda reply: scores[reply])
    assert f"{max(scores.values()):.2f}" in told
    status, out, told = ask(*best_of, "--temperature", "0")
    assert (status, out) == (2, "")
    assert told == (
        "chatapp: --best-of: at temperature 0 every answer is the same; "
        "choose --temperature 0.7 or so\n"
    )


def test_what_was_said_in_the_chat_becomes_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    base = tiny.base(tmp_path / "base")
    store = Store(database_path())
    chat, empty = store.create_chat(), store.create_chat()
    for number in range(10):
        question = store.add_message(chat, None, "user", f"What comes after {number}?")
        reply = store.add_message(chat, question.id, "assistant", "No idea.")
        if number < 8:
            store.set_correction(reply.id, f"{number + 1} comes after.")
    store.close()
    command = ["feedback", "--model", str(base), "--lesson", "sft"]
    written = CliRunner().invoke(app, [*command, "--only-write"])
    assert (written.exit_code, written.stdout) == (0, "runs/feedback-1.toml\n")
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "runs/feedback-2\n"
    assert "8 corrections: runs/feedback-2.toml" in done.stderr
    assert len((tmp_path / "runs" / "feedback-2.jsonl").read_text().splitlines()) == 8
    assert load_model("runs/feedback-2").name == "runs/feedback-2"
    refused = CliRunner().invoke(app, ["feedback", str(empty)])
    assert refused.exit_code == 2
    assert "0 preferences of 8, 0 corrections of 8, 0 verdicts of 16" in refused.stderr
    assert CliRunner().invoke(app, [*command[:-1], "ppo"]).exit_code == 2


def test_a_lesson_is_of_all_chats_not_of_the_newest_hundred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "chats.db")
    for _ in range(40):
        chat_id = store.create_chat()
        asked = store.add_message(chat_id, None, "user", "Hi")
        reply = store.add_message(chat_id, asked.id, "assistant", "No.")
        store.set_correction(reply.id, "Yes.")
    for _ in range(100):
        store.create_chat()
    _, words = write_lesson(store, [], FeedbackFormat.SFT, "bundled", None)
    store.close()
    assert words == "40 corrections"
