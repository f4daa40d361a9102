"""The report on the bundled model: whole chats, counted replies, curves, every part once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import ScriptedModel

from chatapp.engine.events import Event, Finished, Token
from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.prompting.examples import Pool
from chatapp.prompting.template import CHAT
from chatapp.tasks.evaluation.evaluate import Grid
from chatapp.tasks.evaluation.journal import Journal
from chatapp.tasks.files.promptfile import PromptFile
from finetune.bundled_model import few_shot, report, talk
from finetune.bundled_model.generators.tasks import all_tasks

WORDS = [f"{a}{b}ing" for a in "bcdfghklmnprst" for b in ("ar", "el", "in", "op", "um")]


def test_a_scripted_chat_is_held_whole() -> None:
    prompts = []

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        return f" Reply {len(prompts)}."

    replies = report.chat(ScriptedModel(reply), CHAT, Sampling(seed=0))
    assert replies == [f"Reply {number}." for number in range(1, 21)]
    assert report.TURNS[6] == "And of Spain?"
    # A follow-up is asked behind what it follows up on.
    assert "What is the capital of France?" in prompts[6]


def test_right_replies_are_counted() -> None:
    tasks = {task.name: task for task in all_tasks()}
    problems = tasks["reverse"].held_out(4, seed=0, unseen=True)
    replies = [problem.answer for problem in problems[:3]] + ["wrong"]
    assert report.exact(ScriptedModel(replies), CHAT, problems) == 0.75


def test_few_shot_tasks_are_measured_and_gone_on_with(tmp_path: Path) -> None:
    shots = [(f"the {word} cow", "moo") for word in WORDS[:9]]
    shots += [(f"one {word} duck", "quack") for word in WORDS[20:29]]
    prompt = PromptFile(
        path=Path("1: animals"),
        labels=("moo", "quack"),
        metrics=("accuracy",),
        pool=Pool([text for text, _ in shots], [label for _, label in shots]),
    )
    task = few_shot.as_task("1: animals", prompt, shots[:3] + shots[-3:])
    settings = [(task, Grid(shots=(0, 2), select=("random", "knn:tfidf")))]
    model = load_model("bundled")
    with Journal(tmp_path / "answers.jsonl") as journal:
        rows = few_shot.few_shot_rows(model, settings, journal)
    size = (tmp_path / "answers.jsonl").stat().st_size
    with Journal(tmp_path / "answers.jsonl") as journal:
        assert few_shot.few_shot_rows(model, settings, journal) == rows
    assert (tmp_path / "answers.jsonl").stat().st_size == size
    measured = [(row["shots"], row["selection"], row["n"]) for row in rows]
    assert measured == [(0, "none", 6), (2, "random", 6), (2, "knn:tfidf", 6)]
    assert [row["vote"] for row in rows][::2] == [None, 1.0]
    assert all(0 <= row["mean"] <= 1 for row in rows)


def test_the_curve_is_the_mean_over_tasks() -> None:
    rows = [
        {"task": "a", "shots": 0, "selection": "none", "mean": 0.5, "vote": None},
        {"task": "a", "shots": 8, "selection": "knn", "mean": 1.0, "vote": 0.75},
        {"task": "b", "shots": 0, "selection": "none", "mean": 0.25, "vote": None},
        {"task": "b", "shots": 8, "selection": "knn", "mean": 0.5, "vote": 0.25},
    ]
    found = few_shot.curve(rows)
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

    replies = report.chat(Fails([""]), CHAT, Sampling(seed=0))
    assert "Half a word (the reply failed: no memory)" in replies
    problems = all_tasks()[0].held_out(1, seed=0, unseen=True)
    with pytest.raises(talk.ReplyFailed, match=r"the reply to '.*' failed: no memory"):
        report.exact(Fails([""]), CHAT, problems)
    sampling = Sampling(seed=0)
    with pytest.raises(talk.ReplyFailed, match="no memory"):
        list(talk.replies(Fails([""]), CHAT, ["Hi!"], sampling))
    with pytest.raises(talk.ReplyFailed, match=r"was not continued: no memory"):
        report.story_rows(Fails([""]), 1)


@pytest.mark.parametrize(
    ("text", "is_none"),
    [
        (" ran home. The end.", False),
        (" ran. User: Hello!", True),
        (" ran.\n\nInput: a cow\nOutput: moo", True),
        (' said: "Reusers: go!"', False),
    ],
)
def test_a_story_that_becomes_a_chat_or_a_prompt_is_none(text: str, is_none: bool) -> None:
    assert report.becomes_no_story(text) == is_none
    rows = report.story_rows(ScriptedModel(lambda prompt: text), 3)
    assert [row["broken_off"] for row in rows] == [float(is_none)] * 5


def test_labels_are_read_and_no_item_may_be_shown(tmp_path: Path) -> None:
    (tmp_path / "trec_train.txt").write_text("HUM:ind Who was it ?\nNUM:date When was it ?\n")
    (tmp_path / "trec_test.txt").write_text("LOC:city Where is it ?\n", encoding="latin-1")
    task = few_shot.trec(tmp_path, 300)
    assert task.prompt.pool.outputs == ["person", "number"]
    assert [(item.input, item.output) for item in task.items] == [("Where is it ?", "place")]
    for label in ("pos", "neg"):
        lines = [f"a {label} film of {number} hours" for number in range(600)]
        (tmp_path / f"mr_{label}.txt").write_text("\n".join(lines))
    task = few_shot.reviews(tmp_path, 300)
    assert (len(task.items), len(task.prompt.pool)) == (300, 200)
    assert not {item.input for item in task.items} & set(task.prompt.pool.inputs)


def test_every_part_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shots = [(word, "ab"[number % 2]) for number, word in enumerate(WORDS[:8])]
    prompt = PromptFile(
        path=Path("letters"),
        labels=("a", "b"),
        metrics=("accuracy",),
        pool=Pool([text for text, _ in shots], [label for _, label in shots]),
    )
    groups = {
        name: [(few_shot.as_task(name, prompt, shots[:2]), Grid(shots=(0, 1)))]
        for name in ("in_context", "labels", "arithmetic")
    }
    row = {"share": 0.5}
    parts = ("reply_rows", "chat_rows", "task_rows", "story_rows")
    calls = []
    for part in parts:
        monkeypatch.setattr(report, part, lambda *_, part=part: calls.append(part) or [row])
    monkeypatch.setattr(report, "few_shot_settings", lambda *_: groups)
    monkeypatch.setattr(report, "draw_curves", lambda *_: None)
    monkeypatch.setattr(talk, "write", lambda *_: calls.append("talk") or {"logprob": -2.0})
    for _ in range(2):
        report.measure(tmp_path, tmp_path, tmp_path / "out", items=3)
        assert sorted(calls) == sorted([*parts, "talk"])
    text = (tmp_path / "out" / "report.md").read_text()
    for name in (*groups, "talk", "replies", "chat", "tasks", "stories"):
        assert (tmp_path / "out" / f"{name}.json").exists()
        assert f"## {name}\n" in text
    assert "- logprob: -2.00\n" in text
    (tmp_path / "out" / "chat.json").unlink()
    report.measure(tmp_path, tmp_path, tmp_path / "out", items=3)
    assert calls[-1] == "chat_rows"
    assert len(calls) == 6
