"""The recipe of the bundled model: its data from small sources, and its report."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from fakes import ScriptedModel

from chatapp.engine.load import load_model
from chatapp.engine.model import Sampling
from chatapp.evaluation.evaluate import Grid
from chatapp.evaluation.journal import Journal
from chatapp.prompting.examples import Pool
from chatapp.prompting.promptfile import PromptFile
from chatapp.prompting.template import CHAT
from finetune.bundled_model import documents as bundled
from finetune.bundled_model import report as bundled_report
from finetune.bundled_model.generators.incontext import HeldOut
from finetune.bundled_model.generators.tasks import all_tasks

WORDS = [f"{a}{b}ing" for a in "bcdfghklmnprst" for b in ("ar", "el", "in", "op", "um")]


def sources(folder: Path) -> Path:
    """A folder with a little of each source."""
    (folder / "books").mkdir(parents=True)
    lines = [f"What the {word} saw was a river in the valley." for word in WORDS]
    (folder / "books" / "a.txt").write_text("\n\n".join(lines))
    instruct = folder / "instruct"
    instruct.mkdir()
    rows = [
        {"instruction": f"Explain the word {w} to me.", "input": "", "output": "No."} for w in WORDS
    ]
    (instruct / "raschka_1100.json").write_text(json.dumps(rows))
    (instruct / "self_instruct_seed_175.jsonl").write_text("")
    (instruct / "dolly_3k.jsonl").write_text("")
    (folder / "gsm8k").mkdir()
    problem = {"question": "How many are two cows?", "answer": "<<1+1=2>>2\n#### 2"}
    (folder / "gsm8k" / "train.jsonl").write_text(json.dumps(problem) + "\n")
    dialogue = folder / "dialogue"
    (dialogue / "personality_chat").mkdir(parents=True)
    tone = "Queries_Responses_Friendly_QnAMaker.tsv"
    (dialogue / "personality_chat" / tone).write_text("Question\tAnswer\nAre you fun?\tI try.\n")
    (dialogue / "chatterbot_corpus").mkdir()
    (dialogue / "chatterbot_corpus" / "ai.yml").write_text(
        "conversations:\n- - What is AI?\n  - A field of study.\n"
    )
    with gzip.open(dialogue / "sgd_train.jsonl.gz", "wt") as file:
        for number, word in enumerate(WORDS):
            turns = [["U", f"Please find me a {word} in this town today."], ["S", "Which one?"]]
            service = ("Buses_1", "Hotels_2")[number % 2]
            file.write(json.dumps({"services": [service], "turns": turns}) + "\n")
    return folder


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    data = sources(tmp_path / "data")
    for name in ("first", "second"):
        bundled.build(data, tmp_path / name, seed=3, scale=0.001)
    files = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert len(files) == 21
    for name in files:
        text = (tmp_path / "first" / name).read_text()
        assert text == (tmp_path / "second" / name).read_text()
        for line in text.splitlines():
            assert set(json.loads(line)) <= {"text", "messages", "parts"}
    solved = json.loads((tmp_path / "first" / "grade_school.jsonl").read_text())
    assert solved["messages"][1]["content"] == "<<1+1=2>>2\nThe answer is 2"


def test_sentences_are_grouped(tmp_path: Path) -> None:
    groups = bundled.groupings(sources(tmp_path / "data"))
    assert groups["service"].keys() == {"Buses", "Hotels"}
    assert {"what", "please", "explain"} <= groups["opening"].keys()
    assert "What the baring saw was a river in the valley." in groups["source"]["books"]


def test_a_scripted_chat_is_printed_whole() -> None:
    prompts = []

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        return f" Reply {len(prompts)}."

    text = bundled_report.chat(ScriptedModel(reply), CHAT, Sampling(seed=0))
    assert text.count("**User:**") == text.count("**Model:**") == len(bundled_report.TURNS) == 20
    assert "**User:** And of Spain?\n\n**Model:** Reply 7.\n" in text
    # A follow-up is asked behind what it follows up on.
    assert "What is the capital of France?" in prompts[6]


def test_right_replies_are_counted() -> None:
    tasks = {task.name: task for task in all_tasks()}
    problems = tasks["reverse"].held_out(4, seed=0, unseen=True)
    replies = [problem.answer for problem in problems[:3]] + ["wrong"]
    assert bundled_report.exact(ScriptedModel(replies), CHAT, problems) == 0.75


def test_held_out_tasks_are_measured_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shots = [(f"the {word} cow", "moo") for word in WORDS[:9]]
    shots += [(f"one {word} duck", "quack") for word in WORDS[20:29]]
    prompt = PromptFile(
        path=Path("1: animals"),
        labels=("moo", "quack"),
        metrics=("accuracy",),
        pool=Pool([text for text, _ in shots], [label for _, label in shots]),
    )
    task = HeldOut("1: animals", prompt, shots[:3] + shots[-3:])
    monkeypatch.setattr(bundled_report, "GRID", Grid(shots=(0, 2), select=("random", "knn:tfidf")))
    model = load_model("bundled")
    with Journal(tmp_path / "answers.jsonl") as journal:
        rows = bundled_report.in_context_rows(model, [task], journal)
    size = (tmp_path / "answers.jsonl").stat().st_size
    with Journal(tmp_path / "answers.jsonl") as journal:
        assert bundled_report.in_context_rows(model, [task], journal) == rows
    assert (tmp_path / "answers.jsonl").stat().st_size == size
    settings = [(row["shots"], row["selection"], row["n"]) for row in rows]
    assert settings == [(0, "none", 6), (2, "random", 6), (2, "knn:tfidf", 6)]
    assert [row["vote"] for row in rows][::2] == [None, 1.0]
    assert all(0 <= row["mean"] <= 1 for row in rows)


def test_the_curve_is_the_mean_over_tasks() -> None:
    rows = [
        {"task": "a", "shots": 0, "selection": "none", "mean": 0.5, "vote": None},
        {"task": "a", "shots": 8, "selection": "knn", "mean": 1.0, "vote": 0.75},
        {"task": "b", "shots": 0, "selection": "none", "mean": 0.25, "vote": None},
        {"task": "b", "shots": 8, "selection": "knn", "mean": 0.5, "vote": 0.25},
    ]
    found = bundled_report.curve(rows)
    assert [(row["shots"], row["mean"], row["vote"]) for row in found] == [
        (0, 0.375, None),
        (8, 0.75, 0.5),
    ]
    assert bundled_report.table(found).splitlines()[2:] == [
        "| 0 | none | 37.5 |  | 2 |",
        "| 8 | knn | 75.0 | 50.0 | 2 |",
    ]


def test_the_curves_of_two_models_are_drawn_into_one_picture(tmp_path: Path) -> None:
    def report(gain: float) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [
            {"task": "a", "shots": 0, "selection": "none", "mean": 0.25, "vote": None}
        ]
        for k in bundled_report.GRID.shots[1:]:
            for selection in bundled_report.GRID.select:
                row = {"task": "a", "shots": k, "selection": selection, "vote": 0.5}
                rows.append({**row, "mean": 0.25 + gain * k})
        return rows

    bundled_report.draw_curves({"base": report(0.0)}, tmp_path / "one.png")
    bundled_report.draw_curves({"base": report(0.0), "tuned": report(0.04)}, tmp_path / "two.png")
    one, two = ((tmp_path / name).read_bytes() for name in ("one.png", "two.png"))
    assert one.startswith(b"\x89PNG")
    assert two.startswith(b"\x89PNG")
    assert len(two) > len(one)
