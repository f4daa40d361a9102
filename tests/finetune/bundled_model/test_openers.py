"""Replies by rules to what people open a talk with."""

from finetune.bundled_model.generators import openers


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
