"""The report on the bundled model: whole chats, counted replies, answers once; the last look."""

import json

import pytest
from fakes import ScriptedModel

from chatapp.common.userfiles import UserError
from chatapp.engine.events import Finished, Token
from chatapp.engine.model import Sampling
from chatapp.tasks.evaluation.evaluate import Grid
from finetune.bundled_model import chats, report
from finetune.bundled_model.questions import all_tasks, in_most_words
from finetune.bundled_model.tables import table


def test_a_reply_that_failed_is_no_wrong_answer():
    class Fails(ScriptedModel):
        """Holds a word back, as before a stop string, and then breaks off."""

        def generate(self, request):
            (half,) = self.tokenizer.encode(" Half")
            yield Token(half, " Half", " Half", -1.0)
            yield Finished("error", " a word", message="no memory")

    with pytest.raises(UserError, match=r"Hello.*no memory"):
        report.scripted_chat(Fails([""]), 0)
    with pytest.raises(UserError, match=r"Hi!.*no memory"):
        report.replies(Fails([""]), ["Hi!"], Sampling(seed=0))
    with pytest.raises(UserError, match=r"Once upon a time.*no memory"):
        report.continued(Fails([""]), 1)


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


def test_everything_is_measured_and_no_answer_is_computed_twice(data, tmp_path, monkeypatch):
    unknown = {*chats.held_out_questions(150, 0), *table("last_look")["unknown"]}
    right = {
        problem.question: problem.answer
        for task in all_tasks()[:2]
        for unseen in (False, True)
        for problem in task.held_out(3, 0, unseen=unseen)
    }

    def reply(prompt):
        message = prompt.split("User: ")[-1].split("\nAssistant:")[0]
        return " I don't know that." if message in unknown else f" {right.get(message, 'It is.')}"

    model = ScriptedModel(reply)
    asked = [
        report.as_chat(task, 3, 0, unseen=unseen)
        for task in all_tasks()[:3]
        for unseen in (False, True)
    ]
    monkeypatch.setattr(report, "load_model", lambda name: model)
    monkeypatch.setattr(report, "groups", lambda *_: {"tasks": (asked, Grid(shots=(0,)))})
    monkeypatch.setattr(report, "MESSAGES", 70)
    report.measure(tmp_path, data, tmp_path / "out")
    figures = json.loads((tmp_path / "out" / "talk.json").read_text())
    assert figures["declines what it cannot know"] == figures["ends by itself"] == 1
    assert figures["declines what it knows"] == figures["repeats itself"] == 0
    results = json.loads((tmp_path / "out" / "tasks" / "report.json").read_text())["results"]
    means = {row["task"]: row["mean"] for row in results}
    assert means["mean of 3 known"] == means["mean of 3 new"] == pytest.approx(2 / 3)
    replies = (tmp_path / "out" / "talk.md").read_text()
    assert replies.count("I don't know that.") >= 150
    count = len(model.prompts)
    report.measure(tmp_path, data, tmp_path / "out")
    assert len(model.prompts) == 2 * count - sum(len(task.items) for task in asked)
    model.name = "another"
    with pytest.raises(UserError, match=r"answers\.jsonl"):
        report.measure(tmp_path, data, tmp_path / "out")


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


def test_a_story_stays_with_its_subject_and_a_call_has_the_right_numbers():
    good = report.Reply("A story?", "A fox ran. The fox slept.", "stop", "fox")
    chat = report.Reply("A story?", "A fox. A fox. User: Hi", "stop", "fox")
    endless = report.Reply("A story?", "A fox, a fox", "length", "fox")
    calls = [report.Reply("?", f"<<{numbers}=3>>3", "stop", "<<1+2=") for numbers in ("1+2", "2+2")]
    figures = report.shares({"stories": [good, chat, endless, endless], "calls": calls})
    assert figures == {
        "stays with the subject of a story": 0.25,
        "calls with the right numbers": 0.5,
    }
    assert not report.becomes_no_story(good)
    assert report.becomes_no_story(chat)


def test_a_last_look_measures_what_nothing_else_has():
    drawn = report.last_talk(ScriptedModel(lambda prompt: " I don't know."))
    figures = report.shares(drawn)
    assert figures["declines what it cannot know"] == figures["ends by itself"] == 1.0
    assert figures["stays with the subject of a story"] == 0.0
    assert figures["calls with the right numbers"] == 0.0
    assert len(drawn["calls"]) == 45
    look, subjects = table("last_look"), table("subjects")
    assert len(drawn["first messages"]) == len(look["openers"])
    assert not set(look["openers"]) & set(table("first_messages")["said"])
    stories = look["stories"]
    assert len(drawn["stories"]) == len(stories["ask"]) * len(stories["subjects"])
    assert not set(stories["subjects"]) & {x for kind in chats.subjects().values() for x in kind}
    assert not set(stories["ask"]) & {*subjects["ask"], *subjects["again"]}
    (asked, _), (labels, grid) = report.last_groups().values()
    for measured, task, wide in zip(asked, all_tasks(), in_most_words(all_tasks()), strict=True):
        wordings = look["wordings"][task.name]
        assert measured.items
        assert not set(wordings) & {*task.unseen, *wide.ask}
        assert not set(task.unseen) & set(wide.ask)
    assert len(labels) == 4
    assert all(len(task.prompt.pool) > max(grid.shots) for task in labels)
