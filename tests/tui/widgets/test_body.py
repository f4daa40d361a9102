"""The text of a message: wrapped as it arrives as if it had been wrapped at once."""

from hypothesis import given, settings
from hypothesis import strategies as st
from textual.content import Content
from textual.geometry import Offset, Size
from textual.selection import Selection

from chatapp.common.foreign import printable
from chatapp.tui.widgets.message_parts import TextBody

ANY = Size(80, 24)
PIECES = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from(
            [" ", "  ", "\n", "\t", "word ", "x" * 30, "漢字", "👩‍🚀", "\x1b[2J", "\ud800"]
        ),
    ),
    max_size=30,
)


def rows(body, width):
    body.get_content_height(ANY, ANY, width)
    return [row.text for row in body._rows]


@settings(max_examples=150, deadline=None)
@given(PIECES, st.integers(2, 40))
def test_a_stream_is_wrapped_like_the_whole(pieces, width):
    whole = TextBody("".join(pieces))
    stream = TextBody()
    rows(stream, width)
    for piece in pieces:
        stream.append(piece)
    assert rows(stream, width) == rows(whole, width)


@settings(max_examples=150, deadline=None)
@given(PIECES, st.integers(2, 40))
def test_rows_hold_the_whole_text_and_nothing_a_terminal_obeys(pieces, width):
    text = "".join(pieces)
    body = TextBody(text)
    shown = rows(body, width)
    letters = [letter for letter in printable(text) if not letter.isspace()]
    assert [letter for row in shown for letter in row if not letter.isspace()] == letters
    assert all(row == printable(row) for row in shown)
    assert all(Content(row).cell_length <= width for row in shown)
    for row in body._rows:
        assert body._lines[row.line][row.start :].startswith(row.text)


def test_rows_break_between_words():
    assert rows(TextBody("The sea is wide.\n\n  It is deep."), 10) == [
        "The sea is",
        "wide.",
        "",
        "  It is",
        "deep.",
    ]


def test_another_width_wraps_anew():
    body = TextBody("one two three four")
    assert rows(body, 9) == ["one two", "three", "four"]
    assert rows(body, 40) == ["one two three four"]


def test_another_text_takes_its_place():
    body = TextBody("one two")
    rows(body, 10)
    body.replace("three")
    assert rows(body, 10) == ["three"]


def test_a_selection_gives_the_text_and_not_the_rows():
    body = TextBody("one two three four\nfive")
    rows(body, 9)
    assert body.get_selection(Selection(Offset(4, 0), Offset(2, 1))) == ("two three four\nfi", "\n")
