"""Answers of a larger model: which are kept, and what chats are made of them."""

import json
from dataclasses import replace

import pytest
from fakes import ScriptedModel

from chatapp.common.userfiles import UserError
from chatapp.engine.events import Token
from finetune.bundled_model import teacher


@pytest.mark.parametrize(
    ("reply", "logprob", "sentence"),
    [
        (
            "A river is water that flows to the sea. It is long.",
            -0.4,
            "A river is water that flows to the sea.",
        ),
        ("A river costs 3.5 times more!", -0.4, "A river costs 3.5 times more!"),
        ("A river is water that flows and", -0.4, ""),
        ("A river is water that flows.", -1.4, ""),
        ("I'm sorry, but rivers are hard.", -0.4, ""),
        ("Rivers: they flow.", -0.4, ""),
        ("A river is a vital part of a vital part of a vital part.", -0.4, ""),
        ("A desert is an empty, empties place of dryness, dryness and dryness.", -0.4, ""),
        ("A river is " + "very " * 40 + "long.", -0.4, ""),
    ],
)
def test_a_whole_likely_sentence_is_kept(reply, logprob, sentence):
    assert teacher.first_good_sentence(reply, logprob) == sentence


class Scripted(ScriptedModel):
    """Defines what it is asked for, and finds its other replies unlikely."""

    def generate(self, request):
        for event in super().generate(request):
            is_token = isinstance(event, Token)
            likely = -0.5 if "What is" in self.prompts[-1] else -2.0
            yield replace(event, logprob=likely) if is_token else event


def test_a_question_is_asked_once_whatever_stops_the_teacher(tmp_path, monkeypatch, capsys):
    scripted, out = Scripted([" It is a thing."]), tmp_path / "answers.jsonl"
    monkeypatch.setattr(teacher, "load_model", lambda name: scripted)
    teacher.ask_teacher(tmp_path, out)
    whole, questions = out.read_bytes(), [question for question, _ in teacher.questions()]
    assert len(scripted.prompts) == len(set(scripted.prompts)) == len(questions)
    assert {sampling.temperature for sampling in scripted.samplings} == {0.0}
    good = [question for question in questions if question.startswith("What is")]
    assert [row["question"] for row in teacher.read_answers(out)] == good
    assert f"{len(good)} good answers to {len(questions)} questions" in capsys.readouterr().out
    assert json.loads(out.read_text().splitlines()[0])["thing"] == "a river"

    out.write_bytes(b"".join(whole.splitlines(keepends=True)[:32]) + b'{"question": "What')
    scripted.prompts.clear()
    teacher.ask_teacher(tmp_path, out)
    assert len(scripted.prompts) == len(questions) - 32
    assert out.read_bytes() == whole
    monkeypatch.setattr(teacher, "load_model", None)  # needed no more
    teacher.ask_teacher(tmp_path, out)
    assert not teacher.read_answers(tmp_path / "none")


def test_a_teacher_that_fails_gives_no_answer(tmp_path, monkeypatch):
    scripted = ScriptedModel([" A whole sentence.", ValueError("no memory")])
    monkeypatch.setattr(teacher, "load_model", lambda name: scripted)
    with pytest.raises(UserError, match="no memory"):
        teacher.ask_teacher(tmp_path, tmp_path / "answers.jsonl")
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 1
