"""The report on the bundled model: whole chats, counted replies, curves, every part once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import ScriptedModel

from chatapp.engine.events import Event, Finished, Token
from chatapp.engine.model import Request, Sampling
from chatapp.prompting.template import CHAT
from chatapp.rows.examples import Pool
from chatapp.tasks.evaluation.evaluate import Grid
from chatapp.tasks.files.promptfile import PromptFile
from finetune.bundled_model import few_shot, report, talk
from finetune.bundled_model.generators.tasks import all_tasks

WORDS = [f"{a}{b}ing" for a in "bcdfghklmnprst" for b in ("ar", "el", "in", "op", "um")]


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
