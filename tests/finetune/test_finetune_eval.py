"""finetune eval: figures that agree with other ways to compute them, in the model's template."""

import json
from typing import cast

import pytest
import tiny_finetune as tiny
from rich.console import Console
from typer.testing import CliRunner

from chatapp.engine.events import Finished, Token
from chatapp.engine.model import LanguageModel, one_after_another
from chatapp.engine.models.loading import load_model
from chatapp.prompting.template import ALPACA, CHAT
from chatapp.tasks.metrics import rouge_l
from finetune.cli import app
from finetune.config.sections import ConfigError
from finetune.evaluation import compare, evaluate
from finetune.measuring.results import show
from finetune.run import train

QUIET = Console(stderr=True, quiet=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs on the same rows in different templates, the second with an adapter."""
    folder = tmp_path_factory.mktemp("runs")
    train(tiny.config(folder, output=str(folder / "first"), train={"epochs": 8}), QUIET)
    train(
        tiny.config(
            folder,
            output=str(folder / "second"),
            data={"template": "alpaca"},
            train={"epochs": 1, "method": "lora"},
        ),
        QUIET,
    )
    return folder


class FailsOnce:
    """A model whose second generation breaks off after a word."""

    def __init__(self, model):
        self.model = model
        self.calls = 0

    def generate(self, request):
        self.calls += 1
        if self.calls != 2:
            yield from self.model.generate(request)
            return
        yield Token(5, "half", "half", -1.0)
        yield Finished("error", " a word", message="the model failed: no [red]memory")

    def generate_many(self, requests):
        return one_after_another(cast(LanguageModel, self), requests)


def test_a_reply_that_failed_is_told_and_not_scored(runs, monkeypatch):
    first = str(runs / "first")
    whole = evaluate(first, first, "", 4, 12, lambda *_: None).sets["held_out"]
    monkeypatch.setattr(
        "finetune.evaluation.load_model", lambda *_, **__: FailsOnce(load_model(first))
    )
    broken = evaluate(first, first, "", 4, 12, lambda *_: None)
    measured = broken.sets["held_out"]
    kept = [whole.answers[number] for number in (0, 2, 3)]
    assert [each for each in measured.answers if not each.reply.error] == kept
    assert measured.figures["rouge_l"] == pytest.approx(
        rouge_l([each.reply.text for each in kept], [each.reference for each in kept])
    )
    (document,) = broken.document()["sets"].values()
    assert document["failed_replies"] == 1
    assert document["replies"][1]["reply"] == "half a word"
    assert document["replies"][1]["error"] == "the model failed: no [red]memory"
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(show([broken], 2))
    text = console.export_text()
    assert "1 replies not scored, failed: the model failed: no [red]memory" in text
    assert "half a word (the reply failed: the model failed: no [red]memory)" in text


def test_two_runs_side_by_side_on_the_same_rows(runs):
    first, second = str(runs / "first"), str(runs / "second")
    ours, theirs = (evaluate(each, first, "", 2, 8, lambda *_: None) for each in (first, second))
    assert (ours.template, theirs.template) == (CHAT.name, ALPACA.name)
    assert [r.reference for r in ours.sets["held_out"].answers] == [
        r.reference for r in theirs.sets["held_out"].answers
    ]
    console = Console(width=300, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(show([ours, theirs], 1))
    text = console.export_text()
    for measured in (ours, theirs):
        assert f"{measured.sets['held_out'].figures['loss']:.4f}" in text
    assert "What comes after" in text
    assert f"exact match of the same 2 rows, {ours.model} less {theirs.model}: +0.000" in text


def test_a_file_in_place_of_the_held_out_rows(runs):
    path = tiny.pairs(runs / "others.json", 7)
    base = str(runs / "base")
    found = evaluate(base, base, str(path), 0, 8, lambda *_: None)
    assert found.sets["others.json"].examples == 7
    assert "rouge_l" not in found.sets["others.json"].figures
    with pytest.raises(ConfigError, match="is not a run of finetune; name rows with --data"):
        evaluate(base, base, "", 0, 8, lambda *_: None)


def test_the_command(runs):
    first, second = str(runs / "first"), str(runs / "second")
    done = CliRunner().invoke(app, ["eval", first, second, "--replies", "2", "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [each["template"] for each in document["runs"]] == ["chat", "alpaca"]
    for each in document["runs"]:
        held_out = each["sets"]["held_out"]
        assert {"loss", "perplexity", "token_accuracy", "exact_match", "rouge_l"} < held_out.keys()
        assert len(held_out["replies"]) == 2
    exact, rouge = document["comparisons"]
    assert (exact["measure"], rouge["measure"]) == ("exact_match", "rouge_l")
    assert (exact["first"], exact["second"], exact["n"]) == (first, second, 2)
    of = [each["sets"]["held_out"]["rouge_l"] for each in document["runs"]]
    assert rouge["mean"] == pytest.approx(of[0] - of[1])
    done = CliRunner().invoke(app, ["eval", str(runs / "nowhere")])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr


# --- the rows that are measured ------------------------------------------------------------


def silent(*_: object) -> None: ...


def test_a_file_is_read_as_the_runs_rows_were(tmp_path):
    tiny.base(tmp_path / "base")
    rows = [{"Q": f"What comes after {n}?", "A": f"{n + 1} comes."} for n in range(20)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    source = {"path": str(tmp_path / "rows.json"), "columns": {"prompt": "Q", "completion": "A"}}
    config = tiny.config(
        tmp_path, data={"train": [source], "bad_rows": "skip"}, train={"epochs": 0.3}
    )
    run = str(train(config, QUIET))
    others = tmp_path / "others.json"
    others.write_text(json.dumps([*rows[:7], {"Q": 5, "A": "6"}]))
    (found,) = compare([run], str(others), 0, 8, silent)
    assert found.sets["others.json"].examples == 7

    with pytest.raises(ConfigError, match=r"others\.json, line 1: 'prompt' is the number 5"):
        compare([run], str(others), 0, 8, silent, overrides=["data.bad_rows=raise"])
    others.write_text(json.dumps([{"ask": row["Q"], "A": row["A"]} for row in rows[:5]]))
    renamed = ["data.train.0.columns.prompt=ask"]
    (found,) = compare([run], str(others), 0, 8, silent, overrides=renamed)
    assert found.sets["others.json"].examples == 5
    with pytest.raises(ConfigError, match=r"train\.epochs=3.*keys of data and head alone"):
        compare([run], str(others), 0, 8, silent, overrides=["train.epochs=3"])


def test_the_command_takes_keys_and_values(runs):
    others = tiny.pairs(runs / "keys.json", 6)
    rows = json.loads(others.read_text())
    others.write_text(json.dumps([*rows, {"instruction": "", "output": "x"}]))
    arguments = ["eval", str(runs / "first"), "--data", str(others), "--replies", "0", "--json"]
    assert CliRunner().invoke(app, arguments).exit_code == 2
    done = CliRunner().invoke(app, [*arguments, "data.bad_rows=skip"])
    assert done.exit_code == 0, done.output
    (run,) = json.loads(done.stdout)["runs"]
    assert run["sets"]["keys.json"]["examples"] == 6
