"""Answers of a larger model: which are kept, and what chats are made of them."""

import json

import pytest

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


class Scripted:
    """Answers the questions that are no `What is`, and notes what it was asked."""

    def __init__(self):
        self.asked = []

    def answers(self, asked):
        self.asked += asked
        return [("It is a thing.", -0.5 if each.startswith("What is") else -2.0) for each in asked]


def test_a_question_is_asked_once_whatever_stops_the_teacher(tmp_path, monkeypatch, capsys):
    scripted, out = Scripted(), tmp_path / "answers.jsonl"
    monkeypatch.setattr(teacher, "Teacher", lambda path: scripted)
    teacher.ask_teacher(tmp_path, out)
    whole, count = out.read_bytes(), len(teacher.questions())
    assert len(scripted.asked) == len(set(scripted.asked)) == count
    good = [question for question in scripted.asked if question.startswith("What is")]
    assert [row.question for row in teacher.read_answers(out)] == good
    assert f"{len(good)} good answers to {count} questions" in capsys.readouterr().out
    assert json.loads(out.read_text().splitlines()[0])["thing"] == "a river"

    out.write_bytes(b"".join(whole.splitlines(keepends=True)[:32]) + b'{"question": "What')
    scripted.asked.clear()
    teacher.ask_teacher(tmp_path, out)
    assert len(scripted.asked) == count - 32
    assert out.read_bytes() == whole
    monkeypatch.setattr(teacher, "Teacher", None)  # needed no more
    teacher.ask_teacher(tmp_path, out)
    assert not teacher.read_answers(tmp_path / "none")
