"""The last look at a model, and the generators of what it asks for: stories and calls."""

import random
import re
from pathlib import Path

from fakes import ScriptedModel

from finetune.bundled_model import last_look
from finetune.bundled_model.generators import calls, subjects
from finetune.bundled_model.generators.tasks import all_tasks, in_most_words
from finetune.bundled_model.generators.words import table
from finetune.bundled_model.talk import Reply

ASIDES = [(["Hi"], ["Hello!"])]


def test_a_story_stays_with_its_subject() -> None:
    draw = random.Random(0)
    others = set(table("last_look")["stories"]["subjects"])
    for kind, names in subjects.subjects().items():
        for subject in names:
            story = subjects.story(draw, kind, subject)
            assert len(re.findall(rf"\b{subject}\b", story)) >= 3
            assert story.endswith((".", '"'))
            assert not re.search(r"[{}]|\ba [aeio]|\ban [^aeiou]", story)
            assert not others & set(story.split())


def test_a_chat_asks_for_the_subject_that_its_story_names() -> None:
    rows = list(subjects.rows(ASIDES, all_tasks(), 60, seed=0))
    assert rows == list(subjects.rows(ASIDES, all_tasks(), 60, seed=0))
    names = [name for kind in subjects.subjects().values() for name in kind]
    for row in rows:
        texts = [message["content"] for message in row["messages"]]
        request = texts[-2].lower()
        asked = (name for name in names if re.search(rf"\ban? {name}\b", request))
        assert texts[-1].count(max(asked, key=len)) >= 3


def test_a_call_has_the_numbers_of_its_question_and_the_right_result() -> None:
    draw = random.Random(0)
    digits = set()
    for _ in range(300):
        question, answer = calls.call_question(draw)
        call = re.match(r"<<(\d+)([-+*/])(\d+)=(\d+)>>(\d+)", answer)
        assert call
        a, sign, b, result, repeated = call.groups()
        assert {a, b} <= set(re.findall(r"\d+", question))
        exact = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}
        assert int(result) == exact.get(sign, int(a) / int(b))
        assert result == repeated
        digits.add(len(a))
    assert digits == {1, 2, 3, 4, 5, 6}


def test_the_last_look_has_wordings_and_subjects_of_its_own() -> None:
    taught = {subject for names in subjects.subjects().values() for subject in names}
    look = table("last_look")
    assert not taught & set(look["stories"]["subjects"])
    assert not set(look["stories"]["ask"]) & {
        *table("subjects")["ask"],
        *table("subjects")["again"],
    }
    for measured, task, wide in zip(
        last_look.tasks(), all_tasks(), in_most_words(all_tasks()), strict=True
    ):
        assert not set(measured.unseen) & {*task.unseen, *wide.ask}
        assert not set(task.unseen) & set(wide.ask)
        assert measured.held_out(5, 1, unseen=True)
    assert not set(look["openers"]) & set(table("first_messages")["said"])


def test_a_story_that_becomes_a_chat_does_not_stay_with_its_subject() -> None:
    story = "The walrus swam. The walrus slept."
    assert last_look.stays_with("walrus", Reply("", story, "stop"))
    assert not last_look.stays_with("walrus", Reply("", story, "length"))
    assert not last_look.stays_with("walrus", Reply("", story + " User: Hi", "stop"))
    assert not last_look.stays_with("walrus", Reply("", "The walrus swam. It slept.", "stop"))


def test_a_last_look_measures_everything(tmp_path: Path) -> None:
    figures, sample = last_look.evaluate(ScriptedModel(lambda prompt: " I don't know."), tmp_path)
    assert figures["declines_unknown"] == 1.0
    assert figures["tasks"] == figures["stories_on_subject"] == figures["right_calls"] == 0.0
    look, requests = table("last_look"), last_look.story_requests()
    assert len(sample) == len(look["openers"]) + len(look["unknown"]) + len(requests) + 45
    assert {row["tasks"] for row in figures["labels"]} == {4}
