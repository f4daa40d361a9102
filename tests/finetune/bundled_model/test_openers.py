"""Replies by rules to what people open a talk with."""

import pytest

from finetune.bundled_model.generators import openers
from finetune.bundled_model.generators.words import table


@pytest.mark.parametrize(
    ("opener", "named"),
    [
        ("Did you watch the movie Jaws last night?", "Jaws"),
        ('Have you ever seen "Hidden Figures" yet?', "Hidden Figures"),
        ("Hi, how are you? Do you like rap music?", "rap music"),
        ("What do you think of your sister? I like her!", "my sister"),
        ("What's your favorite sport?", "favorite sport"),
        ("Hello there! I'm from Madrid.", "Madrid"),
    ],
)
def test_a_reply_names_what_the_opener_names(opener: str, named: str) -> None:
    replies = openers.replies_to(opener)
    assert any(named in reply for reply in replies)
    assert not any("{" in reply for reply in replies)


def test_a_question_is_replied_to_before_what_follows_it() -> None:
    alone = openers.replies_to("Did you know that bees dance?")
    assert alone == openers.replies_to("Did you know that bees dance? I read it in a book.")
    assert alone != openers.replies_to("I read it in a book.")


@pytest.mark.parametrize("opener", ["Did you see that?", "Do you like it?", "What about them?"])
def test_a_reply_names_nothing_where_the_opener_does_not(opener: str) -> None:
    replies = openers.replies_to(opener)
    assert replies
    assert not any(word in reply for reply in replies for word in ("that.", " it ", "them"))


@pytest.mark.parametrize("opener", ["Hello!", "I'm Nikhil.", "How are you today?", "", " "])
def test_what_others_reply_to_is_left_to_them(opener: str) -> None:
    assert openers.replies_to(opener) == []


def test_rows_hold_an_opener_and_a_reply_that_fits_it() -> None:
    said = ["Do you like jazz?", "Hello!", "I love old trains."]
    rows = list(openers.rows(said, [(("Who are you?",), ("A program.",))], 50, seed=0))
    pairs = [
        (asked["content"], replied["content"])
        for row in rows
        for asked, replied in zip(row["messages"][::2], row["messages"][1::2], strict=True)
    ]
    fitting = {
        **{each: openers.replies_to(each) for each in (said[0], said[2])},
        **{typed: ["A program."] for typed in ("Who are you?", "Who are you", "who are you?")},
        "who are you": ["A program."],
    }
    assert {asked for asked, _ in pairs} >= {said[0], said[2], "Who are you?"}
    assert all(replied in fitting[asked] for asked, replied in pairs)
    assert rows == list(openers.rows(said, [(("Who are you?",), ("A program.",))], 50, seed=0))


def test_a_reply_names_only_what_its_kind_captures() -> None:
    for kind in table("openers")["kind"]:
        names = "(?P<x>" in kind["pattern"]
        assert names or not any("{x}" in reply for reply in kind["replies"])
