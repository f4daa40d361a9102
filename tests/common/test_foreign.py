"""Foreign text never reaches a terminal as a command."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from chatapp.common.foreign import printable, without_surrogates

# Every code point, lone surrogates included, with the dangerous ones often.
ANY_TEXT = st.text(st.characters() | st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"]))


def test_an_escape_sequence_is_shown_and_not_obeyed():
    assert printable("\x1b]0;x\x07") == "␛]0;x␇"
    assert printable("\x1b[2J\r\x7f\x00") == "␛[2J␍␡␀"
    assert printable("\x9b31m\u202egnp") == "\ufffd31m\ufffdgnp"


def test_newlines_tabs_and_letters_of_all_scripts_stay():
    text = "a\n\tb é ß 你好 👩‍👩‍👧 שלום"
    assert printable(text) == text


@given(ANY_TEXT)
def test_what_is_printable_can_be_written_and_holds_no_control(text):
    shown = printable(text)
    shown.encode("utf-8")
    assert len(shown) == len(text)
    assert printable(shown) == shown
    for character in shown:
        if character not in "\n\t":
            assert unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
            assert not unicodedata.bidirectional(character).endswith(("LE", "RE", "LO", "RO"))
            assert unicodedata.bidirectional(character) not in ("PDF", "LRI", "RLI", "FSI", "PDI")


@given(ANY_TEXT)
def test_without_surrogates_changes_nothing_else(text):
    kept = without_surrogates(text)
    for before, after in zip(text, kept, strict=True):
        assert after == ("\ufffd" if unicodedata.category(before) == "Cs" else before)
