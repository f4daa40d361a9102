"""The lessons of the program show what their texts say, with the bundled model."""

from functools import cache

import pytest

from chatapp.dialogue.lessons.lesson import NAMES, SHIPPED, find_lesson
from chatapp.dialogue.lessons.teaching import check_lesson
from chatapp.engine.model import LanguageModel
from chatapp.engine.models.loading import load_model


@cache
def bundled() -> LanguageModel:
    return load_model("bundled")


def load(name):
    return bundled() if name == "bundled" else load_model(name)


@pytest.mark.parametrize("name", NAMES)
def test_each_step_shows_what_its_text_says(name):
    lesson = find_lesson(name)
    checked = list(check_lesson(lesson, load))
    assert [step.number for step in checked] == list(range(1, len(lesson.steps) + 1))
    assert not [(step.step.title, step.problems) for step in checked if step.problems]
    asserted = [step for step in lesson.steps if step.expect.model_fields_set]
    assert len(asserted) > len(lesson.steps) // 2
    assert sum(step.predict is not None for step in lesson.steps) >= 3


def test_every_lesson_has_a_name():
    lessons = {
        path.stem for path in SHIPPED.glob("*.toml") if "[[step]]" in path.read_text("utf-8")
    }
    assert lessons == set(NAMES)
