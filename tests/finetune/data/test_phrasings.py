"""Instruction templates: drawn by content and seed, filled once, with the options there are."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.prompting.messages import Message
from chatapp.rows.reading import BadRow, Row
from finetune.config.sections import ConfigError
from finetune.data.phrasings import load_phrasings, parse_pattern

REVIEWS = """
cluster = "sentiment"
answer  = "label"
options = ["negative", "positive"]

[[templates]]
prompt = "Review: {text}\\nIs this review positive or negative?"

[[templates]]
prompt   = "{text}\\n\\nWhat does the {{critic}} of {year} think?"
response = "It is {label}."

[[templates]]
prompt   = "Write a {label} review."
response = "{text}"
"""

ROW = Row("reviews.csv, line 2", {"text": "Dull.", "label": "negative", "year": 1999})


def load(tmp_path, text=REVIEWS):
    path = tmp_path / "reviews.toml"
    path.write_text(text, encoding="utf-8")
    return load_phrasings(path)


def phrased(phrasings, row=ROW):
    """The row in every phrasing, in the order of the file."""
    turns = range(len(phrasings.templates))
    found = [phrasings.phrase(row, 0, turn).messages for turn in turns]
    pairs = [(request.text, reply.text) for request, reply in found]
    start = next(n for n, (request, _) in enumerate(pairs) if request.startswith("Review"))
    return pairs[start:] + pairs[:start]


def test_every_phrasing_with_its_options(tmp_path):
    options = "\n\nOPTIONS:\n- negative\n- positive"
    assert phrased(load(tmp_path)) == [
        ("Review: Dull.\nIs this review positive or negative?" + options, "negative"),
        ("Dull.\n\nWhat does the {critic} of 1999 think?" + options, "It is negative."),
        ("Write a negative review.", "Dull."),
    ]


def test_options_by_number(tmp_path):
    phrasings = load(tmp_path)
    for label in (1, "1", " positive "):
        row = Row(ROW.location, {**ROW.fields, "label": label})
        assert phrased(phrasings, row)[0][1] == "positive"


def test_yes_and_no_stay_strings(tmp_path):
    text = REVIEWS.replace('"negative", "positive"', '"yes", "no"')
    row = Row(ROW.location, {**ROW.fields, "label": "no"})
    assert phrased(load(tmp_path, text), row)[0][1] == "no"


def test_options_of_the_row(tmp_path):
    text = """
    answer = "goal"
    options = "choices"
    [[templates]]
    prompt = "{question}"
    """
    phrasings = load(tmp_path, text)
    row = Row("a.jsonl, line 1", {"question": "Which?", "choices": ["a", "b"], "goal": 1})
    assert phrasings.phrase(row, 0).messages == (
        Message("user", "Which?\n\nOPTIONS:\n- a\n- b"),
        Message("assistant", "b"),
    )
    for choices in (None, "a", ["a"], ["a", 2]):
        with pytest.raises(BadRow, match=r"'choices' is .*, expected a list of two or more"):
            phrasings.phrase(Row("line 1", {"question": "Q", "choices": choices, "goal": 1}), 0)
    with pytest.raises(BadRow, match="names the field 'choices', which is missing at line 1"):
        phrasings.phrase(Row("line 1", {"question": "Q", "goal": 1}), 0)


def test_the_draw_is_by_seed_and_content(tmp_path):
    phrasings = load(tmp_path)

    def drawn(seed):
        rows = [Row(f"line {n}", {**ROW.fields, "text": f"text {n}"}) for n in range(300)]
        return [phrasings.phrase(row, seed).messages[0].text for row in rows]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    kinds = Counter(text[:5] for text in drawn(0) if not text.startswith("text"))
    assert set(kinds) == {"Revie", "Write"}
    assert all(70 < count < 130 for count in kinds.values())
    # Not the place nor other columns: a row keeps its phrasing when the file changes around it.
    moved = Row("elsewhere", {**ROW.fields, "id": "7"})
    assert phrasings.phrase(moved, 0).messages == phrasings.phrase(ROW, 0).messages
    assert phrasings.phrase(moved, 0).key == phrasings.phrase(ROW, 5, 2).key


@given(st.text(alphabet="{}a%$\\[]", min_size=1, max_size=12))
def test_braces_in_data_are_plain_characters(text):
    pattern = parse_pattern("<{a}|{b}|{{c}}>", "t")
    assert pattern.fill(Row("line 1", {"a": text, "b": "{a}"})) == f"<{text}|{{a}}|{{c}}>"


def test_a_missing_field_names_template_field_and_fields(tmp_path):
    phrasings = load(tmp_path, '[[templates]]\nprompt = "{txt}"\nresponse = "{label}"')
    with pytest.raises(BadRow) as caught:
        phrasings.phrase(ROW, 0)
    assert str(caught.value) == (
        f"{tmp_path / 'reviews.toml'}, template 1 names the field 'txt', which is missing at "
        "reviews.csv, line 2; did you mean 'text'?; there are 'text', 'label', 'year'"
    )


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"label": None}, "label is not an option", "'label' is null"),
        ({"label": "neutral"}, "label is not an option", "'label' is the string 'neutral'"),
        ({"label": 2}, "label is not an option", "expected one of the options"),
        ({"label": True}, "label is not an option", "'label' is true"),
        ({"label": -1}, "label is not an option", "the number -1"),
        ({"text": None}, "text is not text", "the field 'text' is null"),
        ({"text": float("nan")}, "text is not text", "the number nan"),
    ],
)
def test_a_bad_value_is_named(tmp_path, change, reason, words):
    with pytest.raises(BadRow) as caught:
        phrased(load(tmp_path), Row(ROW.location, {**ROW.fields, **change}))
    assert caught.value.reason == reason
    assert words in str(caught.value)
    assert ROW.location in str(caught.value)


def test_an_empty_text_is_a_bad_row(tmp_path):
    phrasings = load(tmp_path, '[[templates]]\nprompt = "{text}"\nresponse = "{label}"')
    with pytest.raises(BadRow, match="the response is empty at"):
        phrasings.phrase(Row("line 1", {"text": "a", "label": " "}), 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'templates' is missing"),
        ("templates = []", "'templates' holds 0, expected 1 or more"),
        ('[[templates]]\nprompt = "a {b"\nresponse = "c"', "template 1: expected '}'"),
        ('[[templates]]\nprompt = "a } b"\nresponse = "c"', "template 1: Single '}'"),
        ('[[templates]]\nprompt = "a {} b"\nresponse = "c"', "only the name of a field"),
        ('[[templates]]\nprompt = "{a!r}"\nresponse = "c"', "only the name of a field"),
        ('[[templates]]\nprompt = "{a:>9}"\nresponse = "c"', "only the name of a field"),
        ('[[templates]]\nprompt = "a"', "template 1: 'response' is missing"),
        (
            '[[templates]]\npromt = "a"',
            "'templates[1].promt' is not a key of a configuration; did you",
        ),
        ('answer = "a"\n[[templates]]\nprompt = "b"', "'options' and 'answer' go together"),
        ('answer = "a"\noptions = ["x"]\n[[templates]]\nprompt = "b"', "two or more different"),
        ('answer = "a"\noptions = ["x", "x "]\n[[templates]]\nprompt = "b"', "two or more"),
        (
            'answer = "a"\noptions = [1, 2]\n[[templates]]\nprompt = "b"',
            "'options[1]' is the number 1, expected a string",
        ),
        ("a = ", "not valid TOML"),
    ],
)
def test_a_broken_file_of_templates_is_named(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "reviews.toml"))
    assert words in str(caught.value)


def test_a_dialogue_template_is_not_a_file_of_templates():
    with pytest.raises(ConfigError, match=r"dialogue template, which is one.*data\.template"):
        load_phrasings(Path("alpaca"))
