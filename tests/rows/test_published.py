"""Public data sets in the formats in which they are published."""

import json
import tomllib
from pathlib import Path

import pytest

from chatapp.prompting.messages import text_of
from chatapp.rows.reading import RowsError
from chatapp.tasks.evaluation.inputs import read_test
from chatapp.tasks.files.layout import render
from chatapp.tasks.files.promptfile import load_prompt

PAPERS = Path(__file__).parents[2] / "prompts" / "papers"

ITEMS = tomllib.loads((Path(__file__).parent / "published.toml").read_text())
"""A record of each format, and what is made of it."""

SUFFIXES = {"story_cloze": "csv", "triviaqa": "json", "webquestions": "json", "race": "txt"}


def prompt_of(name):
    return load_prompt(PAPERS / f"{name}.toml")


def write(folder, name, content):
    path = folder / f"test.{SUFFIXES.get(name, 'jsonl')}"
    path.write_text(content)
    return path


@pytest.mark.parametrize("name", ITEMS)
def test_an_item_of_each_format(tmp_path, name):
    expected, prompt = ITEMS[name], prompt_of(name)
    (item,) = read_test(write(tmp_path, name, expected["record"]), prompt.columns)
    assert text_of(render(prompt, [], item)) == expected["prompt"]
    assert [*item.choices] == expected["choices"]
    assert item.output == expected["answer"]


def test_all_answers_of_a_question_are_right(tmp_path):
    for name, answers in (("triviaqa", ("Ann", "Anna")), ("webquestions", ("New York", "here"))):
        path = write(tmp_path, name, ITEMS[name]["record"])
        (item,) = read_test(path, prompt_of(name).columns)
        assert item.gold == answers


def test_labels_of_piqa_stand_in_a_file_of_their_own(tmp_path):
    rows = [{"goal": f"{n}", "sol1": "a", "sol2": "b"} for n in range(2)]
    path = write(tmp_path, "piqa", "".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "test-labels.lst").write_text("1\n0\n")
    items = read_test(path, prompt_of("piqa").columns)
    assert [item.output for item in items] == ["b", "a"]


def changed(name, **changes):
    return json.dumps(json.loads(ITEMS[name]["record"]) | changes)


FAULTS = {
    ("copa", '{"premise": "x"}'): "line 1: no field 'question', which this format has",
    ("copa", changed("copa", question="why")): "'question' is 'why', expected 'cause' or 'effect'",
    ("copa", changed("copa", label=2)): "the number 2 is not the number of one of 2 choices",
    ("copa", changed("copa", label=None)): "is not the number of one of 2 choices",
    ("copa", changed("copa", choice2="It was thin.")): "'choices' holds a text twice",
    ("race", changed("race", options=[])): "'options' and 'answers' are not lists of equal length",
    ("race", changed("race", answers=["E"])): "is not the number of one of 4 choices",
    ("race", changed("race", options=["abcd"])): "'options' is the string 'abcd', expected a list",
    ("race", "[1]"): "is not a JSON object",
    ("race", "{"): "is not a JSON object",
    (
        "arc",
        changed("arc", answerKey="C"),
    ): "'answerKey' is 'C', which is not the label of a choice",
    ("arc", changed("arc", question="x")): "'question' is not an object with 'stem' and 'choices'",
    ("boolq", changed("boolq", answer="yes")): "expected true or false",
    ("wic", changed("wic", word=3)): "'word' is the number 3, expected a string",
    ("triviaqa", '{"Data": [{"Question": "x", "Answer": "y"}]}'): "'Answer' is the string 'y'",
    ("webquestions", '[{"utterance": "x", "targetValue": "y"}]'): "'targetValue' holds no",
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_record_is_refused_in_one_sentence(tmp_path, case):
    name, content = case
    path = write(tmp_path, name, content)
    with pytest.raises(RowsError) as caught:
        read_test(path, prompt_of(name).columns)
    assert str(caught.value).startswith(f"{path}" if path.suffix == ".txt" else f"{path}, line 1: ")
    assert FAULTS[case] in str(caught.value)
