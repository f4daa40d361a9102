"""Passages: their size, where they are cut, and that no word is lost."""

import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from chatapp.passages.reading import Block, cut, read_blocks


def pieces(name: str, text: str, size: int) -> list[tuple[str, str]]:
    return [
        (piece.place, piece.text) for piece in cut(read_blocks(Path(name), text.encode()), size)
    ]


def test_paragraphs_stay_together_while_they_fit() -> None:
    assert pieces("a.txt", "one\n\ntwo\n\nthree", 8) == [
        ("line 1", "one\n\ntwo"),
        ("line 5", "three"),
    ]


def test_headings_begin_passages_and_name_their_place() -> None:
    page = "# A\n## B\nb\n\nb\n## C\nc\n# D\nd"
    assert pieces("a.md", page, 100) == [
        ("A › B, line 1", "# A\n\n## B\n\nb\n\nb"),
        ("A › C, line 6", "## C\n\nc"),
        ("D, line 8", "# D\n\nd"),
    ]


def test_a_row_shares_its_passage_with_none() -> None:
    assert len(pieces("a.csv", "x\n1\n2\n3", 100)) == 3


def test_long_paragraphs_are_cut_after_a_sentence_or_a_word() -> None:
    assert pieces("a.txt", "One two. Three four five", 12) == [
        ("line 1", "One two."),
        ("line 1, part 2", "Three four"),
        ("line 1, part 3", "five"),
    ]
    assert [text for _, text in pieces("a.txt", "x" * 25, 10)] == ["x" * 10, "x" * 10, "x" * 5]


def test_a_line_of_many_megabytes_takes_no_time_to_speak_of() -> None:
    started = time.monotonic()
    assert sum(len(piece.text) for piece in cut([Block("x" * 2**24, "line 1")], 600)) == 2**24
    assert time.monotonic() - started < 20


@given(
    st.lists(
        st.tuples(st.text(st.sampled_from("ab .\n"), max_size=60), st.integers(0, 2), st.booleans())
    ),
    st.integers(1, 40),
)
def test_every_word_is_in_a_passage_no_longer_than_the_size(
    contents: list[tuple[str, int, bool]], size: int
) -> None:
    blocks = [Block(text, "line 1", "t", level, alone) for text, level, alone in contents]
    found = list(cut(blocks, size))
    letters = "".join(piece.text for piece in found)
    assert "".join(letters.split()) == "".join("".join(block.text.split()) for block in blocks)
    assert all(0 < len(piece.text) <= size for piece in found)
