"""The report on the bundled model: whole chats, counted replies, every part once; the last look."""

import json
from pathlib import Path

import pytest
from fakes import ScriptedModel

from chatapp.engine.events import Finished, Token
from chatapp.engine.model import Sampling
from chatapp.prompting.template import CHAT
from chatapp.rows.examples import Pool
from chatapp.tasks.evaluation.evaluate import Grid
from chatapp.tasks.files.promptfile import PromptFile
from finetune.bundled_model import chats, last_look, report
from finetune.bundled_model.questions import all_tasks
from finetune.bundled_model.tables import table

WORDS = [f"{a}{b}ing" for a in "bcdfghklmnprst" for b in ("ar", "el", "in", "op", "um")]


def test_a_reply_that_failed_stands_in_the_chat_with_its_last_text_and_is_no_wrong_answer():
    class Fails(ScriptedModel):
        """Holds a word back, as before a stop string, and then breaks off."""

        def generate(self, request):
            (half,) = self.tokenizer.encode(" Half")
            yield Token(half, " Half", " Half", -1.0)
            yield Finished("error", " a word", message="no memory")

    replies = report.chat(Fails([""]), CHAT, Sampling(seed=0))
    assert "Half a word (the reply failed: no memory)" in replies
    problems = all_tasks()[0].held_out(1, seed=0, unseen=True)
    with pytest.raises(report.ReplyFailed, match=r"the reply to '.*' failed: no memory"):
        report.exact(Fails([""]), CHAT, problems)
    sampling = Sampling(seed=0)
    with pytest.raises(report.ReplyFailed, match="no memory"):
        list(report.replies(Fails([""]), CHAT, ["Hi!"], sampling))
    with pytest.raises(report.ReplyFailed, match=r"was not continued: no memory"):
        report.story_rows(Fails([""]), 1)


def test_every_part_is_measured_once(tmp_path, monkeypatch):
    shots = [(word, "ab"[number % 2]) for number, word in enumerate(WORDS[:8])]
    prompt = PromptFile(
        path=Path("letters"),
        labels=("a", "b"),
        metrics=("accuracy",),
        pool=Pool([text for text, _ in shots], [label for _, label in shots]),
    )
    groups = {
        name: [(report.as_task(name, prompt, shots[:2]), Grid(shots=(0, 1)))]
        for name in ("in_context", "labels", "arithmetic")
    }
    row = {"share": 0.5}
    parts = ("reply_rows", "chat_rows", "task_rows", "story_rows")
    calls = []
    for part in parts:
        monkeypatch.setattr(report, part, lambda *_, part=part: calls.append(part) or [row])
    monkeypatch.setattr(report, "few_shot_settings", lambda *_: groups)
    monkeypatch.setattr(report, "draw_curves", lambda *_: None)
    monkeypatch.setattr(report, "talk", lambda *_: (calls.append("talk") or {"logprob": -2.0}, []))
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


@pytest.fixture
def data(tmp_path):
    """A folder with 90 kept-out talks of each kind, some with the same first message."""
    (tmp_path / "kept_out").mkdir()
    for name in ("persona_chat", "topical_chat"):
        rows = [
            {"messages": [{"role": "user", "content": f"Do you like {name} {number // 2}?"}]}
            for number in range(180)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "kept_out" / f"{name}.jsonl").write_text(lines)
    return tmp_path


def test_shares_are_of_what_was_said_and_how_it_ended(data, monkeypatch):
    monkeypatch.setattr(report, "MESSAGES", 70)
    unknown = set(chats.held_out_questions(150, 0))

    def reply(prompt):
        asked = prompt.split("User: ")[1].split("\nAssistant:")[0]
        return " I don't know that." if asked in unknown else " It is so."

    shares, some = report.talk(ScriptedModel(reply), data)
    assert shares["declines_unknown"] == 1
    assert shares["declines_known"] == shares["repeats_itself"] == 0
    assert shares["ends_by_itself"] == 1
    assert len(some) == 70 + 150 + 300
    looping = ScriptedModel([" So so."], reason="repetition")
    assert report.talk(looping, data)[0]["repeats_itself"] == 1


class Judge(ScriptedModel):
    """Holds each token as likely as its text is short, and notes what it was asked."""

    def score(self, pairs):
        self.prompts += [self.tokenizer.decode(context) for context, _ in pairs]
        return [[-float(len(self.tokenizer.piece(id))) for id in ids] for _, ids in pairs]


def test_a_judge_tells_how_likely_a_reply_is_where_its_own_would_stand():
    judge = Judge([])
    said = [
        report.Reply("Hi!", "So be", "stop"),
        report.Reply("Hi!", "", "stop"),
        report.Reply("Who?", "Me", "stop"),
    ]
    assert report.likelihoods(judge, said) == [-3.0, -3.0]
    assert [prompt.rsplit("User: ")[-1] for prompt in judge.prompts] == [
        "Hi!\nAssistant:",
        "Who?\nAssistant:",
    ]


def test_a_last_look_measures_everything(tmp_path):
    figures, sample = last_look.evaluate(ScriptedModel(lambda prompt: " I don't know."), tmp_path)
    assert figures["declines_unknown"] == 1.0
    assert figures["tasks"] == figures["stories_on_subject"] == figures["right_calls"] == 0.0
    look, requests = table("last_look"), last_look.story_requests()
    assert len(sample) == len(look["openers"]) + len(look["unknown"]) + len(requests) + 45
    assert {row["tasks"] for row in figures["labels"]} == {4}
