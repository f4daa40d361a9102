"""A reply that repeats itself is ended and cut back; one that was asked to repeat goes on."""

import random
import re

import pytest

from chatapp.engine.stopping import RepetitionFilter


def ended(reply, prompt="Hello!", max_repeats=4):
    """What is shown of a reply of one token a word or mark, and whether it was ended."""
    repeats = RepetitionFilter(lambda: prompt, max_repeats)
    shown = ""
    for token in re.findall(r" ?\w+| ?[^\w\s]|\s", reply):
        shown += repeats.push(hash(token), token)
        assert reply.startswith(shown)
    return shown + repeats.flush(""), repeats.hit


@pytest.mark.parametrize(
    ("begun", "cycle"),
    [
        ("It is", " so"),
        ("It", " goes on and on,"),
        ("Well.", " The sky is blue. The sea is deep."),
        ("", "\n"),
    ],
)
def test_a_cycle_is_cut_back_to_its_first_time(begun, cycle):
    assert ended(begun + cycle * 60) == (begun + cycle, True)


def test_nothing_is_shown_that_is_cut_later():
    draw = random.Random(0)
    words = [" " + word for word in "a the cat dog sat ran on mat and or".split()]
    for _ in range(300):
        begun = "".join(draw.choices(words, k=draw.randrange(20)))
        cycle = "".join(draw.choices(words, k=draw.randint(1, 12)))
        repeats = RepetitionFilter(lambda: "", 4)
        shown = []
        for token in re.findall(r" \w+", begun + cycle * 60):
            shown.append(repeats.push(hash(token), token))
            if repeats.hit:
                break
        assert repeats.hit
        assert repeats.flush(" more") == ""
        # The cycle may have begun in what stood before it, and hold a shorter one.
        assert (begun + cycle).startswith("".join(shown))
        assert "".join(shown).startswith(begun.rstrip("abcdefghijklmnopqrstuvwxyz "))


@pytest.mark.parametrize(
    "reply",
    [
        "Row, row, row your boat. " * 3,
        "Ha ha ha ha ha ha ha ha ha ha!",
        "| a | b |\n" + "| - | - |\n" * 3,
        " ".join(f"{n} and {n + 1}" for n in range(200)),
        "one two three four five six seven eight nine ten " * 3 + "one two three",
    ],
)
def test_what_comes_a_few_times_goes_on(reply):
    assert ended(reply) == (reply, False)


def test_a_long_cycle_is_a_refrain():
    refrain = " ".join(f"word{n}" for n in range(40)) + ". "
    assert ended(refrain * 6) == (refrain * 6, False)


@pytest.mark.parametrize(
    ("prompt", "cycle"),
    [
        ("Say banana forty times.", " banana"),
        ("Write one hundred times: I must not talk.", " I must not talk."),
        ("Write one hundred times: I must not TALK.", "I must not talk.\n"),
        ("Go on: no more, no more,", " more, no"),
        ("Draw a line like this: -=-=-", "-="),
    ],
)
def test_what_is_asked_for_may_come_again(prompt, cycle):
    assert ended(cycle * 60, prompt) == (cycle * 60, False)


@pytest.mark.parametrize(
    ("prompt", "cycle"),
    [
        ("Why is the sky blue?", " The sky is blue."),
        ("The sky is blue.", " The sky is blue."),
        ("Draw a line - or two.", "-"),
        ("When is Lent?", "en"),
    ],
)
def test_what_the_prompt_holds_once_or_in_another_order_is_not_asked_for(prompt, cycle):
    repeats = RepetitionFilter(lambda: prompt, 4)
    shown = "".join(repeats.push(id, cycle if id == 1 else "") for id in [1, 2, 3] * 60)
    assert (shown, repeats.hit) == (cycle, True)


def test_after_what_was_asked_for_another_cycle_is_ended():
    reply = " banana" * 50 + " then" + " why not" * 50
    assert ended(reply, "Repeat: banana") == (" banana" * 50 + " then why not", True)


def test_zero_lets_everything_pass_at_once():
    repeats = RepetitionFilter(lambda: "", 0)
    assert [repeats.push(1, "so") for _ in range(100)] == ["so"] * 100
    assert repeats.flush("!") == "!"


def test_more_repeats_are_waited_for():
    reply = " a b c d e f g h" * 5
    assert ended(reply, max_repeats=5) == (" a b c d e f g h", True)
    assert ended(reply, max_repeats=6) == (reply, False)
