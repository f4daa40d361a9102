"""Arguments that are taken from a question."""

import re
import time

import pytest

from chatapp.common.paths import tools_dir
from chatapp.dialogue.tools.registry import find_tools
from chatapp.dialogue.tools.schemas import misfit
from chatapp.dialogue.tools.tool_choice import form_of, forms

TOOLS = find_tools().tools


@pytest.mark.parametrize(
    ("question", "expression"),
    [
        ("Nora has 48 boxes with 761 eggs in each.", "48*761"),
        ("What is 12 times 12?", "12*12"),
        ("How much is (3 + 4) * 5?", "(3 + 4) * 5"),
        ("How much is 20% of 1,500?", "20% of 1,500"),
        ("Add 1, 2 and 3.", "1+2+3"),
    ],
)
def test_an_expression_has_the_numbers_of_the_question(question, expression):
    possible = [given["expression"] for given in forms(TOOLS["calculator"], question).values()]
    assert expression in possible
    own = set(re.findall(r"[0-9]+", question))
    assert {number for one in possible for number in re.findall("[0-9]+", one)} <= own


def test_places_are_those_of_the_question():
    away = "What do clocks in Buenos Aires show?"
    assert list(forms(TOOLS["clock"], away).values()) == [{"zone": "Buenos Aires"}]


def test_a_question_without_the_parts_of_an_argument_is_none_for_the_tool():
    assert forms(TOOLS["calculator"], "How are you?") == {}
    assert list(forms(TOOLS["clock"], "What time is it?").values()) == [{}]


def test_every_example_gives_its_own_arguments():
    shown = 0
    for tool in TOOLS.values():
        for example in tool.examples:
            assert misfit(example.arguments, tool.parameters) == ""
            form = form_of(tool, example)
            assert forms(tool, example.question)[form] == example.arguments
            shown += 1
    assert shown > 40


def test_a_long_question_takes_no_long_time():
    question = " ".join(f"Number {number} and Name{number}" for number in range(20_000))
    started = time.process_time()
    assert forms(TOOLS["calculator"], question)
    assert time.process_time() - started < 5


WEATHER = """
name = "weather"
description = "The weather in a city."
command = ["true"]
copied = true
[parameters]
required = ["city"]
[parameters.properties.city]
type = "string"
[[examples]]
question = "Is it raining in Oslo?"
arguments = {city = "Oslo"}
"""


def test_a_tool_of_the_user_brings_examples():
    _write(WEATHER)
    tool = find_tools().tools["weather"]
    arguments = forms(tool, "Will there be snow in Riga tomorrow?").values()
    assert list(arguments) == [{"city": "Riga"}]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('{city = "Oslo"}', '{town = "Oslo"}', ("example 1", "city")),
        ('{city = "Oslo"}', "{city = 3}", ("example 1", "city", "string")),
        ("question =", "ask =", ("example 1", "ask", "question")),
        ("copied = true", 'copied = "city"', ("copied", "true or false")),
    ],
)
def test_an_invalid_example_is_named(old, new, words):
    path = _write(WEATHER.replace(old, new))
    registry = find_tools()
    assert "weather" not in registry.tools
    assert all(word in registry.problems["weather"] for word in (str(path), *words))


def _write(text):
    path = tools_dir() / "weather.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
