"""What was judged in a chat: written as a configuration, learnt, and used by the commands."""

import json
from io import BytesIO, TextIOWrapper

import pytest
import tiny_finetune as tiny
from preference_runs import config
from rich.console import Console
from typer.testing import CliRunner

from chatapp.cli import main
from chatapp.common.paths import database_path
from chatapp.dialogue.feedback import FeedbackFormat
from chatapp.dialogue.reply_scores import ReplyScorer
from chatapp.dialogue.store import Store
from chatapp.engine.models.loading import load_model
from chatapp.prompting.messages import Message
from finetune.cli import app
from finetune.config.sections import ConfigError, FinetuneConfig, load_config
from finetune.feedback import choose, write_configuration
from finetune.run import examine, train

QUIET = Console(stderr=True, quiet=True)

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


def test_feedback_becomes_a_configuration_that_can_be_checked(tmp_path):
    base = tiny.base(tmp_path / "base")
    lesson = choose(SAID)
    assert lesson.words == "preferences"
    path = write_configuration(lesson, SAID[lesson.format], str(base), tmp_path / "new")
    settings = load_config(FinetuneConfig, path, [])
    assert settings.objective.kind == "dpo"
    assert examine(settings, "cpu").kept == 12
    with pytest.raises(ConfigError, match="is there already"):
        write_configuration(lesson, SAID[lesson.format], str(base), tmp_path / "new")


def test_too_little_feedback_says_how_much_is_needed():
    few = {**SAID, FeedbackFormat.DPO: SAID[FeedbackFormat.DPO][:3]}
    with pytest.raises(ConfigError, match="3 preferences of 8, 0 corrections of 8, 0 verdicts"):
        choose(few)
    one_sided = {**few, FeedbackFormat.KTO: [{"label": True}] * 40}
    with pytest.raises(ConfigError, match="a quarter bad"):
        choose(one_sided, FeedbackFormat.KTO)


def test_the_best_of_several_answers_is_the_one_that_scores_highest(tmp_path, monkeypatch, capsys):
    run = train(config(tmp_path, "reward"), QUIET, "cpu")
    question = "What comes after 3?"

    def ask(*options):
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


def test_what_was_said_in_the_chat_becomes_a_model(tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    base = tiny.base(tmp_path / "base")
    store = Store(database_path())
    chat, empty = store.create_chat(model=str(base)), store.create_chat()
    theirs = store.create_chat(model="another")  # feedback on the replies of another model
    for number in range(11):
        of = chat if number else theirs
        question = store.add_message(of, None, "user", f"What comes after {number}?")
        reply = store.add_message(of, question.id, "assistant", "No idea.")
        if number < 9:
            store.set_correction(reply.id, f"{number + 1} comes after.")
    store.close()
    command = ["feedback", "--model", str(base), "--lesson", "sft"]
    written = CliRunner().invoke(app, [*command, "--only-write"])
    assert (written.exit_code, written.stdout) == (0, "runs/feedback-1.toml\n")
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "runs/feedback-2\n"
    assert "8 corrections: runs/feedback-2.toml" in done.stderr
    assert "base: 8" in done.stderr.replace("\n", ""), "rows by the model they were given to"
    assert len((tmp_path / "runs" / "feedback-2.jsonl").read_text().splitlines()) == 8
    assert load_model("runs/feedback-2").name == "runs/feedback-2"
    refused = CliRunner().invoke(app, ["feedback", str(empty)])
    assert refused.exit_code == 2
    assert "0 preferences of 8, 0 corrections of 8, 0 verdicts of 16" in refused.stderr
    assert CliRunner().invoke(app, [*command[:-1], "ppo"]).exit_code == 2
