"""finetune eval: figures that agree with other ways to compute them, in the model's template."""

import json
from collections.abc import Iterable, Iterator
from math import exp
from pathlib import Path
from typing import Any, cast

import pytest
import tiny_finetune as tiny
from rich.console import Console
from typer.testing import CliRunner

from chatapp.engine.events import Event, Finished, Token
from chatapp.engine.model import LanguageModel, Request, one_after_another
from chatapp.engine.models.loading import load_model
from chatapp.prompting.messages import Message, Segment
from chatapp.prompting.template import ALPACA, CHAT
from chatapp.tasks.evaluation.metrics import rouge_l
from finetune.cli import app
from finetune.config.sections import ConfigError
from finetune.data.corpus import train_tokenizer
from finetune.data.encoding import Span
from finetune.evaluation import compare, evaluate
from finetune.measuring.results import show
from finetune.run import train
from finetune.training.setup import set_up_run

QUIET = Console(stderr=True, quiet=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_the_figures_of_a_run(runs: Path) -> None:
    first = str(runs / "first")
    found = evaluate(first, first, "", 4, 12, lambda *_: None)
    assert found.template == "chat"
    (measured,) = found.sets.values()
    result = json.loads((runs / "first" / "result.json").read_text())
    for ours, theirs in (
        ("loss", "eval_loss"),
        ("perplexity", "eval_perplexity"),
        ("token_accuracy", "eval_accuracy"),
    ):
        assert measured.figures[ours] == pytest.approx(result[theirs], rel=1e-5)

    # The same loss from the engine's own scores.
    model = load_model(first)
    config = tiny.config(runs, output=str(runs / "other"))
    examples = set_up_run(config).data.held_out["held_out"].examples
    assert measured.examples == len(examples)
    pairs = []
    for example in examples:
        places = (example.spans == Span.RESPONSE).nonzero()[0].tolist()
        start, end = places[0], places[-1] + 1
        assert places == list(range(start, end))
        pairs.append((example.ids[:start].tolist(), example.ids[start:end].tolist()))
    scores = [value for each in model.score(pairs) for value in each]
    loss = -sum(scores) / len(scores)
    assert measured.figures["loss"] == pytest.approx(loss, abs=1e-4)
    assert measured.figures["perplexity"] == pytest.approx(exp(loss), rel=1e-3)

    assert len(measured.answers) == 4
    for reply in measured.answers:
        assert reply.prompt.startswith("What comes after")
        assert reply.reference.endswith("comes after.")
    assert measured.figures["rouge_l"] == pytest.approx(
        rouge_l([r.reply.text for r in measured.answers], [r.reference for r in measured.answers])
    )
    assert "exact_match" in measured.figures


class FailsOnce:
    """A model whose second generation breaks off after a word."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.calls = 0

    def generate(self, request: Request) -> Iterator[Event]:
        self.calls += 1
        if self.calls != 2:
            yield from self.model.generate(request)
            return
        yield Token(5, "half", "half", -1.0)
        yield Finished("error", " a word", message="the model failed: no [red]memory")

    def generate_many(self, requests: Iterable[Request]) -> Iterator[tuple[int, Event]]:
        return one_after_another(cast(LanguageModel, self), requests)


def test_a_reply_that_failed_is_told_and_not_scored(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_two_runs_side_by_side_on_the_same_rows(runs: Path) -> None:
    first, second = str(runs / "first"), str(runs / "second")
    ours, theirs = (evaluate(each, first, "", 2, 8, lambda *_: None) for each in (first, second))
    assert (ours.template, theirs.template) == (CHAT.name, ALPACA.name)
    assert [r.reference for r in ours.sets["held_out"].answers] == [
        r.reference for r in theirs.sets["held_out"].answers
    ]
    console = Console(width=150, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(show([ours, theirs], 1))
    text = console.export_text()
    for measured in (ours, theirs):
        assert f"{measured.sets['held_out'].figures['loss']:.4f}" in text
    assert "What comes after" in text


def test_a_file_in_place_of_the_held_out_rows(runs: Path) -> None:
    path = tiny.pairs(runs / "others.json", 7)
    base = str(runs / "base")
    found = evaluate(base, base, str(path), 0, 8, lambda *_: None)
    assert found.sets["others.json"].examples == 7
    assert "rouge_l" not in found.sets["others.json"].figures
    with pytest.raises(ConfigError, match="no run of finetune; name rows with --data"):
        evaluate(base, base, "", 0, 8, lambda *_: None)


def test_the_command(runs: Path) -> None:
    first, second = str(runs / "first"), str(runs / "second")
    done = CliRunner().invoke(app, ["eval", first, second, "--replies", "2", "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [each["template"] for each in document["runs"]] == ["chat", "alpaca"]
    for each in document["runs"]:
        held_out = each["sets"]["held_out"]
        assert {"loss", "perplexity", "token_accuracy", "exact_match", "rouge_l"} < held_out.keys()
        assert len(held_out["replies"]) == 2
    done = CliRunner().invoke(app, ["eval", str(runs / "nowhere")])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_device_is_that_of_the_settings(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHATAPP_DEVICE", "abacus")
    done = CliRunner().invoke(app, ["eval", str(runs / "first")])
    assert done.exit_code == 2
    assert "CHATAPP_DEVICE" in done.stderr
    assert "abacus" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- the rows that are measured ------------------------------------------------------------


def silent(*_: object) -> None: ...


@pytest.mark.parametrize(
    "data",
    [
        {"max_length": 130, "too_long": "raise"},
        {"max_length": 60, "too_long": "drop"},
        {"max_length": 60, "too_long": "truncate-prompt"},
    ],
)
def test_a_run_is_measured_on_the_rows_that_training_measured(
    tmp_path: Path, data: dict[str, Any]
) -> None:
    tiny.base(tmp_path / "base")
    rows = [
        {"instruction": "What comes after " * (1 + n % 3) + f"{n}?", "output": f"{n + 1} comes."}
        for n in range(40)
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    config = tiny.config(tmp_path, data={"held_out": 0.4, **data}, train={"epochs": 0.5})
    trained = set_up_run(config).data.held_out["held_out"]
    run = str(train(config, QUIET))
    (found,) = compare([run], "", 0, 8, silent)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert found.sets["held_out"].examples == len(trained)
    assert found.sets["held_out"].figures["loss"] == pytest.approx(result["eval_loss"], rel=1e-5)


def test_a_file_is_read_as_the_runs_rows_were(tmp_path: Path) -> None:
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


def test_the_command_takes_keys_and_values(runs: Path) -> None:
    others = tiny.pairs(runs / "keys.json", 6)
    rows = json.loads(others.read_text())
    others.write_text(json.dumps([*rows, {"instruction": "", "output": "x"}]))
    arguments = ["eval", str(runs / "first"), "--data", str(others), "--replies", "0", "--json"]
    assert CliRunner().invoke(app, arguments).exit_code == 2
    done = CliRunner().invoke(app, [*arguments, "data.bad_rows=skip"])
    assert done.exit_code == 0, done.output
    (run,) = json.loads(done.stdout)["runs"]
    assert run["sets"]["keys.json"]["examples"] == 6


def test_models_are_compared_on_the_rows_that_both_can_hold(tmp_path: Path) -> None:
    """The second has a shorter window and cuts text into other tokens."""
    tiny.base(tmp_path / "base")
    short = tiny.base(tmp_path / "short")
    tokenizer = train_tokenizer([[Segment("instruction", "Other words. " * 9)]], 290)
    tokenizer.save(str(short / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    tiny.gpt2(1, vocab_size=size, n_positions=80, initializer_range=0.1).save_pretrained(short)
    rows = [
        {"instruction": "What comes after " * (1 + 3 * (n % 2)) + f"{n}?", "output": f"{n + 1} é"}
        for n in range(20)
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    run = str(train(tiny.config(tmp_path, train={"epochs": 0.3}), QUIET))
    long, few = compare([run, str(short)], str(tmp_path / "rows.json"), 3, 8, silent)
    ours, theirs = long.sets["rows.json"], few.sets["rows.json"]
    assert ours.examples == theirs.examples == 10
    assert ours.left_out == theirs.left_out == 10
    assert [each.reference for each in ours.answers] == [each.reference for each in theirs.answers]

    # The same log-likelihood, spread over bytes.
    short_rows = tmp_path / "short_rows.json"
    short_rows.write_text(json.dumps(rows[::2]))
    (alone,) = compare([run], str(short_rows), 0, 8, silent)
    assert alone.sets["short_rows.json"].figures == {
        key: pytest.approx(value, rel=1e-4)
        for key, value in ours.figures.items()
        if key not in ("exact_match", "rouge_l")
    }
    model = load_model(run)
    nats = tokens = 0.0
    for row in rows[::2]:
        prompt = CHAT.render([Message("user", row["instruction"])])
        ids = [id for part in prompt for id in model.tokenizer.encode(part.text)]
        reply = [*model.tokenizer.encode(" " + row["output"]), model.tokenizer.end_id]
        nats -= sum(model.score([(ids, reply)])[0])
        tokens += len(reply)
    size = sum(len(row["output"].encode()) for row in rows[::2])
    assert ours.figures["loss_per_byte"] == pytest.approx(nats / size, rel=1e-4)
    assert ours.figures["loss"] == pytest.approx(nats / tokens, rel=1e-4)

    console = Console(width=150, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(show([long, few], 0))
    text = console.export_text()
    assert "rows.json: 10 rows that all can hold, 10 left out" in text
    assert "compare the loss a byte" in text
    assert "perplexity" not in text
    low, high = ours.intervals["rouge_l"]
    assert low <= ours.figures["rouge_l"] <= high
    assert f"({low:.3f} to {high:.3f}, n 3)" in text
