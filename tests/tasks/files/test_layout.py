import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from chatapp.prompting.messages import Segment, text_of
from chatapp.rows.examples import Pool, PromptError
from chatapp.tasks.files.layout import arrange, continuation, fit, render, render_channel
from chatapp.tasks.files.promptfile import PromptFile
from chatapp.tasks.selection.select import Select

SPAM = PromptFile(
    path=Path("spam.toml"),
    instruction="Classify each email as spam or ham.",
    input_prefix="Email: ",
    output_prefix="Class:",
    labels=("spam", "ham"),
    pool=Pool(["You won a prize!", "See you at noon.", "Cheap pills"], ["spam", "ham", "spam"]),
)

anything = st.text(st.characters(exclude_categories=[]))


def words(text):
    return len(re.findall(r"\s*\S+|\s+$", text))


def test_the_layout():
    assert text_of(render(SPAM, [0, 1], "Lunch?\n")) == (
        "Classify each email as spam or ham.\n\n"
        "Email: You won a prize!\nClass: spam\n\n"
        "Email: See you at noon.\nClass: ham\n\n"
        "Email: Lunch?\nClass:"
    )
    assert continuation(SPAM, "ham") == " ham"


def test_every_character_has_its_origin():
    assert render(SPAM, [0], "Lunch?") == [
        Segment("instruction", "Classify each email as spam or ham."),
        Segment("marker", "\n\nEmail:"),
        Segment("example", " You won a prize!"),
        Segment("marker", "\nClass:"),
        Segment("example", " spam"),
        Segment("marker", "\n\nEmail:"),
        Segment("user", " Lunch?"),
        Segment("marker", "\nClass:"),
    ]


@pytest.mark.parametrize(
    ("prefixes", "expected"),
    [
        (("", " =>"), "You won a prize! => spam\n\nLunch? =>"),
        (("", ""), "You won a prize! spam\n\nLunch?"),
        (("Q: ", "A:  "), "Q: You won a prize!\nA: spam\n\nQ: Lunch?\nA:"),
        (("Q: ", "\n\nA:"), "Q: You won a prize!\n\nA: spam\n\nQ: Lunch?\n\nA:"),
        (
            ("Mail:\n", "Reply:\n"),
            "Mail:\nYou won a prize!\nReply:\nspam\n\nMail:\nLunch?\nReply:\n",
        ),
    ],
)
def test_other_layouts(prefixes, expected):
    prompt = replace(SPAM, instruction="", input_prefix=prefixes[0], output_prefix=prefixes[1])
    assert text_of(render(prompt, [0], "Lunch?")) == expected
    whole = text_of(render(prompt, [], "Lunch?")) + continuation(prompt, "ham")
    shot = replace(prompt, pool=Pool(["Lunch?"], ["ham"]))
    assert text_of(render(shot, [0], "x")).startswith(whole)


def test_the_layout_of_channel_scoring():
    segments = render_channel(SPAM, [0], "Lunch?", "ham")
    assert text_of(segments) == (
        "Classify each email as spam or ham.\n\n"
        "Class: spam\nEmail: You won a prize!\n\n"
        "Class: ham\nEmail: Lunch?"
    )
    assert segments[-3:] == [
        Segment("assistant", " ham"),
        Segment("marker", "\nEmail:"),
        Segment("user", " Lunch?"),
    ]


@pytest.mark.parametrize(
    ("prefixes", "expected"),
    [
        (("", " =>"), "=> ham\nLunch?"),
        (("", ""), "ham\nLunch?"),
        (("Mail:\n", "\nReply:\n"), "Reply:\nham\nMail:\nLunch?"),
    ],
)
def test_other_layouts_of_channel_scoring(prefixes, expected):
    prompt = replace(SPAM, instruction="", input_prefix=prefixes[0], output_prefix=prefixes[1])
    assert text_of(render_channel(prompt, [], "Lunch?", "ham")) == expected
    with pytest.raises(PromptError, match="an input that is not empty"):
        render_channel(prompt, [], " ", "ham")


def test_an_input_without_content_is_laid_out_as_well():
    assert text_of(render(SPAM, [], "")).endswith("\n\nEmail: \nClass:")


def test_a_text_is_completed_as_it_stands():
    prompt = PromptFile(path=Path("story.txt"), text="Once {upon}")
    assert render(prompt, [], "") == [Segment("user", "Once {upon}")]
    with pytest.raises(PromptError, match=r"story\.txt: is a text to complete and takes no input"):
        render(prompt, [], "x")


@given(anything, anything, anything)
def test_what_is_put_in_is_never_looked_at_again(query, shown, answer):
    prompt = replace(SPAM, labels=(), pool=Pool([shown.strip() or "x"], [answer.strip() or "y"]))
    text = text_of(render(prompt, [0], query))
    assert text == (
        f"Classify each email as spam or ham.\n\n"
        f"Email: {prompt.pool.inputs[0]}\nClass: {prompt.pool.outputs[0]}\n\n"
        f"Email: {query.strip()}\nClass:"
    )


@given(anything, anything, anything, anything, anything)
def test_a_prompt_never_ends_in_a_space(instruction, before, after, separator, query):
    prompt = PromptFile(
        path=Path("x.toml"),
        instruction=instruction.strip(),
        input_prefix=before,
        output_prefix=after,
        separator=separator,
        pool=Pool(["a"], ["b"]),
    )
    segments = render(prompt, [0], query)
    assert not text_of(segments).endswith((" ", "\t"))
    # White space at the end of a segment is left only at the end of the prompt.
    assert all(segment.text == segment.text.rstrip(" \t\r\n") != "" for segment in segments[:-1])


printed = st.text(st.sampled_from("ab ,.\n\t1é'{"), min_size=1).map(str.strip).filter(bool)


@given(printed, printed, printed, st.sampled_from(["\n", "\n\n", "\n\n\n", " ", "\n---\n"]))
def test_segments_are_encoded_as_the_whole_would_be(query, shown, answer, separator):
    """Checked with the rule by which GPT-2 cuts text into pieces before its merges."""
    prompt = replace(SPAM, separator=separator, labels=(), pool=Pool([shown], [answer]))
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    segments = [*render(prompt, [0], query), Segment("assistant", continuation(prompt, answer))]

    def cut(text):
        return [piece for piece, _ in pieces.pre_tokenize_str(text)]

    assert [piece for segment in segments for piece in cut(segment.text)] == cut(text_of(segments))


def test_orders():
    ranked = [4, 1, 7, 3]
    assert arrange(ranked, Select(order="nearest-first")) == ranked
    assert arrange(ranked, Select(order="nearest-last")) == ranked[::-1]
    shuffled = arrange(ranked, Select(order="shuffled", seed=1))
    assert sorted(shuffled) == sorted(ranked)
    assert shuffled == arrange(ranked[::-1], Select(order="shuffled", seed=1))
    assert any(arrange(ranked, Select(order="shuffled", seed=n)) != shuffled for n in range(9))
    # Where there is a nearness, the nearest stands next to the query by itself.
    assert arrange(ranked, Select(method="knn")) == ranked[::-1]
    assert arrange(ranked, Select(method="fixed")) == ranked


def brute_force(prompt, ranked, query, count, limit):
    """The longest beginning of the ranking that fits, of what could fit at all."""

    def size(kept):
        if prompt.scoring == "channel":
            return max(
                sum(count(segment.text) for segment in render_channel(prompt, kept, query, label))
                for label in prompt.labels
            )
        segments = render(prompt, kept, query)
        answers = [count(continuation(prompt, label)) for label in prompt.labels]
        return sum(count(segment.text) for segment in segments) + max(answers, default=0)

    possible = [index for index in ranked if size([index]) <= limit]
    kept = [possible[:n] for n in range(len(possible) + 1) if size(possible[:n]) <= limit]
    return kept[-1] if kept else []


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=12),
    st.sampled_from([(words, 10), (words, 25), (words, 60), (len, 60), (len, 160), (len, 300)]),
    st.sampled_from(["", "Say it."]),
    st.sampled_from(["In: ", ""]),
    st.sampled_from(["direct", "channel", "none"]),
    st.sampled_from(["nearest-first", "nearest-last", "shuffled"]),
)
def test_fitting_equals_trying_everything(lengths, room, instruction, before, scoring, order):
    count, limit = room
    pool = Pool([" ".join("a" * n) + f" {row}" for row, n in enumerate(lengths)], ["x y"] * 12)
    prompt = PromptFile(
        path=Path("x.toml"),
        instruction=instruction,
        input_prefix=before,
        labels=() if scoring == "none" else ("x y", "a b c d"),
        scoring="channel" if scoring == "channel" else "direct",
        select=Select(order=order),
        pool=pool,
    )
    ranked = list(range(len(lengths)))[::-1]
    fitted = fit(prompt, ranked, "one two", count, limit)
    assert fitted.kept == brute_force(prompt, ranked, "one two", count, limit)
    assert sorted(fitted.kept + fitted.dropped) == sorted(ranked)
    assert fitted.dropped == [index for index in ranked if index in set(fitted.dropped)]
    assert fitted.tokens <= limit


def test_a_tokenizer_for_which_beginnings_are_dear_does_not_overflow():
    """Without instruction and prefix, what a text costs as the first one is not known before."""
    prompt = PromptFile(
        path=Path("x.toml"), input_prefix="", output_prefix="", pool=Pool(["aa", "bb"], ["x", "y"])
    )

    def count(text):
        return 9 if text in ("aa", "bb") else 1

    assert fit(prompt, [0, 1], "q", count, 5).kept == []
    fitted = fit(prompt, [0, 1], "q", count, 12)
    assert (fitted.kept, fitted.dropped, fitted.tokens) == ([0], [1], 11)


def test_the_query_is_never_cut():
    with pytest.raises(
        PromptError, match=r"spam\.toml: the instruction and the input alone take \d+ tokens, and "
    ):
        fit(SPAM, [0, 1], "word " * 100, words, 50)


def test_no_text_is_counted_twice():
    counted = []

    def count(text):
        counted.append(text)
        return words(text)

    pool = Pool([f"text {row}" for row in range(1_000)], ["x"] * 1_000)
    fitted = fit(replace(SPAM, pool=pool), range(1_000), "q", count, 3_000)
    assert len(fitted.kept) > 100
    assert len(counted) == len(set(counted))
    # Nor is anything counted of what lies far beyond the window.
    assert len(counted) < len(fitted.kept) + 20
