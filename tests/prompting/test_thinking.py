"""Thoughts taken apart from replies, however the text is cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.prompting.thoughts_and_calls import Marks, ThoughtFilter, marks_in

MARKS = Marks("<think>", "</think>")


def apart(pieces, *, is_open=False):
    thoughts = ThoughtFilter(MARKS, is_open=is_open)
    parts = [*map(thoughts.push, pieces), thoughts.flush()]
    return "".join(thought or "" for thought, _ in parts), "".join(said for _, said in parts)


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("Yes.", "", "Yes."),
        ("<think>\nHm.\n</think>\n\nYes.", "\nHm.\n", "\n\nYes."),
        (" \n<think>Hm</think>", "Hm", ""),
        ("<think>\nHm", "\nHm", ""),
        ("<think>a < b </thin", "a < b </thin", ""),
        ("<think>a<think>b</think>c</think>d", "a<think>b", "c</think>d"),
        ("It says <think> and </think>.", "", "It says <think> and </think>."),
        ("<thinking> is a tag", "", "<thinking> is a tag"),
        ("<thi", "", "<thi"),
        (" ", "", " "),
        ("", "", ""),
        ("</think>", "", "</think>"),
    ],
)
def test_a_thought_stands_at_the_beginning(text, thought, said):
    assert apart([text]) == (thought, said)
    assert apart(list(text)) == (thought, said)


def test_a_thought_that_the_prompt_has_begun():
    assert apart(["Hm", ".</th", "ink>", " Yes."], is_open=True) == ("Hm.", " Yes.")
    assert apart(["Hm."], is_open=True) == ("Hm.", "")


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "th", "ink>", "/", " ", "a"])))
def test_the_cuts_do_not_matter_and_nothing_is_lost(pieces):
    text = "".join(pieces)
    thought, said = apart(pieces)
    assert apart([text]) == apart(list(text)) == (thought, said)
    kept = text.lstrip().removeprefix("<think>") if text.lstrip().startswith("<think>") else text
    assert thought + said in (kept, kept.replace("</think>", "", 1))


def test_each_token_is_of_a_thought_or_not():
    thoughts = ThoughtFilter(MARKS)
    pushed = [thoughts.push(piece) for piece in ("<think>", "Hm", "</think>", "Yes")]
    assert pushed == [("", ""), ("Hm", ""), ("", ""), (None, "Yes")]


def test_the_marks_of_a_model():
    assert marks_in("{{ content.split('</think>')[-1] }}", ()) == MARKS
    assert marks_in("", ("[THINK]", "[/THINK]")) == Marks("[THINK]", "[/THINK]")
    assert marks_in("{{ '<think>' }}", ("<think>",)) is None
