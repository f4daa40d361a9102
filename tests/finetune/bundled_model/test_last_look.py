"""The last look at a model, and the generators of what it asks for: stories and calls."""

from pathlib import Path

from fakes import ScriptedModel

from finetune.bundled_model import last_look
from finetune.bundled_model.generators import subjects
from finetune.bundled_model.generators.tasks import all_tasks, in_most_words
from finetune.bundled_model.generators.words import table


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


def test_a_last_look_measures_everything(tmp_path: Path) -> None:
    figures, sample = last_look.evaluate(ScriptedModel(lambda prompt: " I don't know."), tmp_path)
    assert figures["declines_unknown"] == 1.0
    assert figures["tasks"] == figures["stories_on_subject"] == figures["right_calls"] == 0.0
    look, requests = table("last_look"), last_look.story_requests()
    assert len(sample) == len(look["openers"]) + len(look["unknown"]) + len(requests) + 45
    assert {row["tasks"] for row in figures["labels"]} == {4}
