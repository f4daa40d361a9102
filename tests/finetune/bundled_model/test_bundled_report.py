"""The report on the bundled model: whole chats, counted replies, curves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import ScriptedModel

from chatapp.engine.events import Event, Finished, Token
from chatapp.engine.model import Request, Sampling
from chatapp.evaluation.evaluate import Grid
from chatapp.evaluation.journal import Journal
from chatapp.models.loading import load_model
from chatapp.prompting.examples import Pool
from chatapp.prompting.files.promptfile import PromptFile
from chatapp.prompting.template import CHAT
from finetune.bundled_model import report
from finetune.bundled_model.generators.incontext import HeldOut
from finetune.bundled_model.generators.tasks import all_tasks

WORDS = [f"{a}{b}ing" for a in "bcdfghklmnprst" for b in ("ar", "el", "in", "op", "um")]


def test_a_scripted_chat_is_printed_whole() -> None:
    prompts = []

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        return f" Reply {len(prompts)}."

    text = report.chat(ScriptedModel(reply), CHAT, Sampling(seed=0))
    assert text.count("**User:**") == text.count("**Model:**") == len(report.TURNS) == 20
    assert "**User:** And of Spain?\n\n**Model:** Reply 7.\n" in text
    # A follow-up is asked behind what it follows up on.
    assert "What is the capital of France?" in prompts[6]


def test_right_replies_are_counted() -> None:
    tasks = {task.name: task for task in all_tasks()}
    problems = tasks["reverse"].held_out(4, seed=0, unseen=True)
    replies = [problem.answer for problem in problems[:3]] + ["wrong"]
    assert report.exact(ScriptedModel(replies), CHAT, problems) == 0.75


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
    monkeypatch.setattr(report, "GRID", Grid(shots=(0, 2), select=("random", "knn:tfidf")))
    model = load_model("bundled")
    with Journal(tmp_path / "answers.jsonl") as journal:
        rows = report.in_context_rows(model, [task], journal)
    size = (tmp_path / "answers.jsonl").stat().st_size
    with Journal(tmp_path / "answers.jsonl") as journal:
        assert report.in_context_rows(model, [task], journal) == rows
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
    found = report.curve(rows)
    assert [(row["shots"], row["mean"], row["vote"]) for row in found] == [
        (0, 0.375, None),
        (8, 0.75, 0.5),
    ]
    assert report.table(found).splitlines()[2:] == [
        "| 0 | none | 37.5 |  | 2 |",
        "| 8 | knn | 75.0 | 50.0 | 2 |",
    ]


def test_the_curves_of_two_models_are_drawn_into_one_picture(tmp_path: Path) -> None:
    def rows_of(gain: float) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [
            {"task": "a", "shots": 0, "selection": "none", "mean": 0.25, "vote": None}
        ]
        for k in report.GRID.shots[1:]:
            for selection in report.GRID.select:
                row = {"task": "a", "shots": k, "selection": selection, "vote": 0.5}
                rows.append({**row, "mean": 0.25 + gain * k})
        return rows

    report.draw_curves({"base": rows_of(0.0)}, tmp_path / "one.png")
    report.draw_curves({"base": rows_of(0.0), "tuned": rows_of(0.04)}, tmp_path / "two.png")
    one, two = ((tmp_path / name).read_bytes() for name in ("one.png", "two.png"))
    assert one.startswith(b"\x89PNG")
    assert two.startswith(b"\x89PNG")
    assert len(two) > len(one)


def test_a_reply_that_failed_stands_in_the_chat_with_its_last_text_and_is_no_wrong_answer() -> None:
    class Fails(ScriptedModel):
        """Holds a word back, as before a stop string, and then breaks off."""

        def generate(self, request: Request) -> Iterator[Event]:
            (half,) = self.tokenizer.encode(" Half")
            yield Token(half, " Half", " Half", -1.0)
            yield Finished("error", " a word", message="no memory")

    text = report.chat(Fails([""]), CHAT, Sampling(seed=0))
    assert "**Model:** Half a word (the reply failed: no memory)\n" in text
    problems = all_tasks()[0].held_out(1, seed=0, unseen=True)
    with pytest.raises(report.ReplyFailed, match=r"the reply to '.*' failed: no memory"):
        report.exact(Fails([""]), CHAT, problems)
