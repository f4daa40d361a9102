"""What the recipe in `again` adds: stories on a subject, calls with large numbers, more wordings,
and held-out sets that training does not touch.
"""

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes import ScriptedModel

from finetune.bundled_model import last_look, storyteller
from finetune.bundled_model.generators import calls, subjects
from finetune.bundled_model.generators.subjects import TaughtStory
from finetune.bundled_model.generators.tasks import all_tasks, in_most_words
from finetune.bundled_model.generators.words import table
from finetune.bundled_model.talk import Reply

FOX = (
    "A fox lived in a wood. The fox was hungry, and an old hen came by. The fox said hello, and "
    "she gave it some of her bread. From that day the two of them ate together under the tree."
)


def test_a_story_names_its_subject_and_ends() -> None:
    assert subjects.good_story(FOX.replace(". ", ".\n"), "fox") == FOX
    assert not subjects.good_story(FOX, "hen")  # not at its beginning
    assert not subjects.good_story(FOX.replace("The fox", "It"), "fox")
    assert not subjects.good_story(FOX[:-5], "fox")
    assert not subjects.good_story(f"**A fox** {FOX}", "fox")


def test_another_subject_takes_the_place_of_the_storys_own() -> None:
    story = subjects.about("A fox saw two foxes. Foxes like a red fox.", "fox", "owl")
    assert story == "An owl saw two owls. Owls like a red owl."
    assert subjects.about("An owl and its owls. Owl!", "owl", "fox") == "A fox and its foxes. Fox!"


def test_a_chat_asks_for_the_subject_that_its_story_names() -> None:
    taught = [TaughtStory("fox", "animal", FOX)]
    rows = list(subjects.rows(taught, [(["Hi"], ["Hello!"])], all_tasks(), 60, seed=0))
    assert rows == list(subjects.rows(taught, [(["Hi"], ["Hello!"])], all_tasks(), 60, seed=0))
    named = set()
    for row in rows:
        texts = [message["content"] for message in row["messages"]]
        for question, story in zip(texts[::2], texts[1::2], strict=True):
            if story.startswith(("A ", "An ")) and "lived in a wood" in story:
                subject = story.split(" lived")[0].split(" ", 1)[1]
                assert subject in question
                named.add(subject)
    assert "fox" in named
    assert len(named) > 10


def test_stories_are_told_round_by_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Scripted:
        def __init__(self) -> None:
            self.requests: list[str] = []

        def drawn(
            self, instruction: str, texts: Sequence[str], *, most_tokens: int, seed: int
        ) -> list[str]:
            self.requests += texts
            return [FOX if "a fox" in text else "" for text in texts]

    scripted, out = Scripted(), tmp_path / "taught.jsonl"
    out.write_text(json.dumps({"question": "What is tea?", "answer": "A drink."}) + "\n")
    monkeypatch.setattr(storyteller, "Teacher", lambda path, precision: scripted)
    storyteller.write(tmp_path, out, rounds=1)
    storyteller.write(tmp_path, out, rounds=2)
    assert storyteller.read_stories(out) == [TaughtStory("fox", "animal", FOX)] * 2
    assert len(scripted.requests) == len(set(scripted.requests))


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
    assert len(sample) == 40 + 40 + 60 + 30
    assert {row["tasks"] for row in figures["labels"]} == {4}
