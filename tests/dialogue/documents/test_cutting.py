"""Passages: their size, where they are cut, and that no word is lost."""

from pathlib import Path
from typing import ClassVar

from hypothesis import given
from hypothesis import strategies as st

from chatapp.dialogue.documents.passages import TextBlock, cut, read_blocks


def pieces(name, text, size):
    return [
        (piece.place, piece.text) for piece in cut(read_blocks(Path(name), text.encode()), size)
    ]


def test_paragraphs_stay_together_while_they_fit():
    assert pieces("a.txt", "one\n\ntwo\n\nthree", 8) == [
        ("line 1", "one\n\ntwo"),
        ("line 5", "three"),
    ]


def test_headings_begin_passages_and_name_their_place():
    page = "# A\n## B\nb\n\nb\n## C\nc\n# D\nd"
    assert pieces("a.md", page, 100) == [
        ("A > B, line 1", "# A\n\n## B\n\nb\n\nb"),
        ("A > C, line 6", "## C\n\nc"),
        ("D, line 8", "# D\n\nd"),
    ]


def test_a_row_shares_its_passage_with_none():
    assert len(pieces("a.csv", "x\n1\n2\n3", 100)) == 3


def test_long_paragraphs_are_cut_after_a_sentence_or_a_word():
    assert pieces("a.txt", "One two. Three four five", 12) == [
        ("line 1", "One two."),
        ("line 1, part 2", "Three four"),
        ("line 1, part 3", "five"),
    ]
    assert [text for _, text in pieces("a.txt", "x" * 25, 10)] == ["x" * 10, "x" * 10, "x" * 5]


class CountedText(str):
    """Counts the characters that are copied out of texts of this kind."""

    copied: ClassVar[int] = 0

    def __getitem__(self, key):
        part = CountedText(super().__getitem__(key))
        CountedText.copied += len(part)
        return part


def test_the_cost_of_a_long_line_is_linear():
    text = CountedText("x" * 2**20)
    assert sum(len(piece.text) for piece in cut([TextBlock(text, "line 1")], 600)) == len(text)
    assert len(text) <= CountedText.copied < 5 * len(text)


@given(
    st.lists(
        st.tuples(st.text(st.sampled_from("ab .\n"), max_size=60), st.integers(0, 2), st.booleans())
    ),
    st.integers(1, 40),
)
def test_every_word_is_in_a_passage_no_longer_than_the_size(contents, size):
    blocks = [TextBlock(text, "line 1", "t", level, alone) for text, level, alone in contents]
    found = list(cut(blocks, size))
    letters = "".join(piece.text for piece in found)
    assert "".join(letters.split()) == "".join("".join(block.text.split()) for block in blocks)
    assert all(0 < len(piece.text) <= size for piece in found)
