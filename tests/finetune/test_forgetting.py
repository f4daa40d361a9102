"""What a run lost and gained: the same general questions before and after."""

import json

import tiny_finetune as tiny
from fakes import ScriptedModel
from rich.console import Console

from finetune import run as running
from finetune.config.sections import FinetuneConfig
from finetune.measuring import forgetting
from finetune.measuring.forgetting import ITEMS, measure_forgetting

ROWS = [json.loads(line) for line in ITEMS.read_text(encoding="utf-8").splitlines()]
ANSWERS = {row["question"]: row["answers"][-1] for row in ROWS}


def knows(tasks):
    """A model that is right about questions of some kinds."""
    known = {row["question"] for row in ROWS if row["task"] in tasks}

    def reply(prompt):
        question = prompt.rsplit("User:", 1)[1].partition("\n")[0].strip()
        return f" It is {ANSWERS[question].upper()}, I say." if question in known else " 1234"

    return ScriptedModel(reply, context=400)


def test_the_questions_are_different_and_have_answers():
    assert len(ANSWERS) == len(ROWS) == 200
    assert all(answer.strip() for row in ROWS for answer in row["answers"])


def test_lost_and_gained_are_counted_question_by_question(monkeypatch):
    models = {"before": knows({"sum", "capital"}), "after": knows({"capital", "plural"})}
    monkeypatch.setattr(forgetting, "load_model", lambda name, device: models[name])
    found = measure_forgetting("before", "after", 200, 1e6)
    assert found is not None
    counts = {task: sum(row["task"] == task for row in ROWS) for task in ("sum", "plural")}
    assert (found.n, found.lost, found.gained) == (200, counts["sum"], counts["plural"])
    assert found.before - found.lost == found.after - found.gained
    assert f"lost {found.lost}, gained {found.gained}" in found.words
    few = measure_forgetting("before", "after", 40, 1e6)
    assert few.n == 40
    assert measure_forgetting("before", "after", 19, 1e6) is None
    hurried = measure_forgetting("before", "after", 200, 0.0)
    assert hurried.n == forgetting._AT_ONCE  # no more than the first ones


def test_a_run_says_it_and_its_card_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "SHORTEST", 0.0)
    base = tiny.base(tmp_path / "base")
    settings = {
        "model": str(base),
        "output": str(tmp_path / "run"),
        "data": {"train": str(tiny.pairs(tmp_path / "rows.json", 8)), "held_out": 0.0},
        "train": {"max_steps": 2, "batch_size": 4, "precision": "float32"},
    }
    console = Console(record=True, width=300, file=open("/dev/null", "w"))  # noqa: SIM115
    folder = running.train(FinetuneConfig.model_validate(settings), console)
    result = json.loads((folder / "result.json").read_text())
    words = result["general"]["words"]
    assert result["general"]["n"] >= forgetting.LEAST
    assert words in console.export_text()
    assert words in (folder / "README.md").read_text()
    assert words in (folder / "report.md").read_text()
    settings["train"]["general_questions"] = 0
    settings["output"] = str(tmp_path / "other")
    folder = running.train(FinetuneConfig.model_validate(settings), console)
    assert "general" not in json.loads((folder / "result.json").read_text())
