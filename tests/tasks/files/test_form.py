"""Layouts with named fields: what is printed, what is refused, and where the tokens meet."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from chatapp.prompting.messages import Segment, text_of
from chatapp.prompting.template import PLAIN
from chatapp.rows.examples import Example, Pool, PromptError, read_pool
from chatapp.tasks.files.layout import TextLayout, TurnsLayout, continuation, fit, render
from chatapp.tasks.files.promptfile import PromptFile, load_for_chat, load_prompt

NEWS = """
example = "Title: {title}\\nSubtitle: {subtitle}\\nArticle: {article}"
separator = "\\n\\n"
examples = [
  {title = "Rain", subtitle = "Wet {streets}", article = "It rained."},
  {title = "Sun", subtitle = "Dry streets", article = "It {title} shone.", other = "x"},
]
"""


def write(folder, content, name="task.toml"):
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


def labelled(example, query=""):
    pool = Pool(["You're {late}"], ["rude"], columns={})
    return PromptFile(path=Path("x.toml"), example=example, query=query, pool=pool)


def test_several_fields_of_an_input(tmp_path):
    prompt = load_prompt(write(tmp_path, NEWS))
    query = Example("", "", values={"title": "Snow", "subtitle": "{article}"})
    assert text_of(render(prompt, [0, 1], query)) == (
        "Title: Rain\nSubtitle: Wet {streets}\nArticle: It rained.\n\n"
        "Title: Sun\nSubtitle: Dry streets\nArticle: It {title} shone.\n\n"
        "Title: Snow\nSubtitle: {article}\nArticle:"
    )
    assert continuation(prompt, "It snowed.") == " It snowed."
    assert prompt.pool.inputs[0] == "Rain\nWet {streets}"


@pytest.mark.parametrize(
    ("example", "query", "shown", "asked", "answer"),
    [
        ("'{text}': {label}", "", "'You're {late}': rude", "'Hi':", " rude"),
        ('"{text}" is "{label}"', "", '"You\'re {late}" is "rude"', '"Hi" is "', "rude"),
        ("{text}\n{{{label}}}", "", "You're {late}\n{rude}", "Hi\n{", "rude"),
        (
            "{text} ({text}) => {label}",
            "{text} =>\n",
            "You're {late} (You're {late}) => rude",
            "Hi =>\n",
            "rude",
        ),
        ("{text}\n\t{label}.", "{text} ", "You're {late}\n\trude.", "Hi", " rude"),
        ("", "'{text}' Polite? ", "'You're {late}' Polite? rude", "'Hi' Polite?", " rude"),
        ("", "'{text}'\n", "'You're {late}'\nrude", "'Hi'\n", "rude"),
    ],
)
def test_layouts(example, query, shown, asked, answer):
    prompt = labelled(example, query)
    assert text_of(render(prompt, [0], "Hi")) == f"{shown}\n\n{asked}"
    assert continuation(prompt, "rude") == answer


def test_each_field_is_a_segment_with_its_name():
    segments = render(labelled("Said: '{text}' {label}!"), [0], "Hi")
    assert segments == [
        Segment("marker", "Said:"),
        Segment("example", " 'You're {late}'"),
        Segment("example", " rude!"),
        Segment("marker", "\n\nSaid:"),
        Segment("user", " 'Hi'"),
    ]
    assert [segment.name for segment in segments] == ["", "text", "label", "", "text"]


def test_the_instruction_is_a_field():
    prompt = replace(labelled("{text}\n{instruction}\n{label}"), instruction="Rude?")
    assert text_of(render(prompt, [0], "Hi")) == "You're {late}\nRude?\nrude\n\nHi\nRude?\n"
    off = replace(prompt, instruction="")
    assert text_of(render(off, [], "Hi")) == "Hi\n\n"
    kinds = [segment.kind for segment in render(prompt, [], "Hi")]
    assert kinds == ["user", "instruction", "marker"]


def test_turns_of_a_chat_hold_the_query():
    prompt = labelled("'{text}': {label}")
    messages = TurnsLayout(prompt, PLAIN).messages([0], "Hi")
    texts = [message.text for message in messages]
    assert texts == ["'You're {late}':", "rude", "'Hi':"]


def test_what_follows_an_answer():
    assert TextLayout(labelled('"{text}" is "{label}"')).after_answer().text == '"\n\n"x'
    assert TextLayout(labelled("{text}: {label}")).after_answer().text == "\n\nx"


def test_examples_are_left_out_to_fit():
    prompt = labelled("'{text}': {label}")
    everything = fit(prompt, [0], "Hi", len, 1_000)
    assert fit(prompt, [0], "Hi", len, everything.tokens).kept == [0]
    assert fit(prompt, [0], "Hi", len, everything.tokens - 1).dropped == [0]


values = st.text(st.sampled_from("ab ,.'\n\tsdé1{}\""), min_size=1).map(str.strip).filter(bool)
literals = st.text(st.sampled_from("ab ,.'\n:\"s"), max_size=6)


@given(values, values, values, literals, literals, literals)
def test_segments_are_encoded_as_the_whole_would_be(query, shown, answer, first, second, third):
    """As in `test_layout`, with values between literals that touch them."""
    prompt = PromptFile(
        path=Path("x.toml"),
        example=f"{first}{{text}}{second}{{label}}{third}",
        pool=Pool([shown], [answer]),
    )
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    segments = render(prompt, [0], query)

    def cut(text):
        return [piece for piece, _ in pieces.pre_tokenize_str(text)]

    assert [piece for segment in segments for piece in cut(segment.text)] == cut(text_of(segments))
    demonstration = f"{first}{shown}{second}{answer}{third}\n\n{first}{query}{second}"
    assert text_of(segments) == demonstration.rstrip(" \t\r\n") or demonstration.startswith(
        text_of(segments)
    )


REFUSALS = {
    'example = "{text: {label}"': "line 1: 'example' holds a single { at character 1; a field is "
    "written as {name}, and a brace as {{",
    'example = "{text} }: {label}"': "'example' holds a single } at character 8",
    'example = "{text}: {}"': "'example' holds '{}', which is not the name of a field in braces",
    'example = "{text}: { label }"': "'example' holds '{ label }', which is not the name",
    'example = "no field"': "'example' holds no field, such as {label}, for the answer",
    'example = "{label}"': "'example' holds no field for an input",
    'query = "Say something:"': "'query' holds no field for an input",
    'example = ""': "'example' is the string '', expected a text that is not empty",
    'query = "a"\nexample = "{text}: {label}"\nquery2 = 1': "'query2' is not a key",
    'example = "{text}: {label}"\nquery = "{txt}:"': "line 2: 'query' holds '{txt}', a field that "
    "'example' does not have",
    'example = "{text}: {label}"\nquery = "{label}:"': "'query' holds '{label}', which is "
    "the answer",
    'example = "{text}: {label}"\nquery = "{te\ue000xt}:"': r"'query' holds '{te\ue000xt}'",
    'example = "{text}: {label}"\ninput_prefix = "Q:"': "line 2: 'input_prefix' conflicts with a "
    "layout of named fields",
    'example = "{a} {b}: {c}"\n[documents]\npaths = ["x"]': "'documents' needs a layout whose "
    "query has one field",
    'example = "{text}: {label}"\nlabels = ["a", "b"]\n[score]\nmethod = "channel"': "line 4: "
    "'score.method' is 'channel', which puts the input after the label; a layout of named fields",
    'example = "{text}: {label}"\nexamples = [{text = "a", lable = "b"}]': "line 2, example 1: no "
    "field 'label', which the layout of the prompt file uses; there are 'text', 'lable'",
    'example = "{text}: {mark}"\nexamples = [{text = "a", mark = 1}]': "example 1: 'mark' is the "
    "number 1, expected a string; write it in quotes",
}


@pytest.mark.parametrize("body", REFUSALS)
def test_a_layout_is_refused_in_one_sentence(tmp_path, body):
    path = write(tmp_path, body)
    with pytest.raises(PromptError) as caught:
        load_prompt(path)
    assert str(caught.value).startswith(str(path))
    assert REFUSALS[body] in str(caught.value)


def test_a_missing_field_names_the_file_and_the_row(tmp_path):
    write(tmp_path, '{"title": "a", "article": "b"}\n{"title": "c"}', "pool.jsonl")
    path = write(tmp_path, 'example = "{title}: {article}"\nexamples_file = "pool.jsonl"')
    with pytest.raises(PromptError, match=r"pool\.jsonl, line 2: no field 'article', which"):
        load_prompt(path)


def test_a_row_that_repeats_another_is_left_out_of_every_column(tmp_path):
    write(tmp_path, "a,b,c\n1,2,x\n1,2,x\n3,4,y\n", "p.csv")
    prompt = load_prompt(write(tmp_path, 'example = "{a}+{b}={c}"\nexamples_file = "p.csv"'))
    assert (len(prompt.pool), prompt.pool.repeats) == (2, 1)
    assert prompt.pool[1] == Example("3\n4", "y", values={"a": "3", "b": "4"})
    assert read_pool(tmp_path / "p.csv", columns=prompt.form.columns) == prompt.pool


def test_a_message_fills_one_field(tmp_path):
    path = write(tmp_path, NEWS)
    with pytest.raises(PromptError, match="has the fields title, subtitle, and a message is one"):
        load_for_chat(path)
