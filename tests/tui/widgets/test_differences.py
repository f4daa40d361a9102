"""What differs between two texts."""

import pytest

from chatapp.tui.widgets.rendered import difference


def marked(text, spans):
    return [text[first:last] for first, last in spans]


@pytest.mark.parametrize(
    ("left", "right", "only_left", "only_right"),
    [
        ("Hello Clara! Tea?", "Hello Clara, tea?", ["! Tea"], [", tea"]),
        ("It is wide.", "It is very wide.", [], ["very"]),
        ("One\ntwo three", "One  two", ["three"], []),
        ("日本 🐚 x y", "日本 🐌 x y", ["🐚"], ["🐌"]),
    ],
)
def test_whole_words_are_marked(left, right, only_left, only_right):
    found = difference(left, right)
    assert marked(left, found.left) == only_left
    assert marked(right, found.right) == only_right
    assert found.words.startswith("Differences are marked: ")


def test_words_are_counted():
    assert difference("a b c", "a x y c").words == (
        "Differences are marked: 1 of 3 words at the left, 2 of 4 words at the right."
    )


@pytest.mark.parametrize("text", ["", "The same  text."])
def test_the_same_is_called_so(text):
    assert difference(text, text.replace("  ", " ")) == ((), (), "Both replies are the same.")


def test_what_has_little_in_common_is_not_marked():
    found = difference("The sea is wide.", "I like tea")
    assert found == ((), (), "The two replies have little in common.")
