"""The invariant of stop strings, for any text and any way to cut it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.engine.stopping import StopFilter

# Few letters, so that stop strings overlap with the text, each other and themselves.
texts = st.text(alphabet="ab\nU", max_size=30)
stops = st.lists(st.text(alphabet="ab\nU", min_size=1, max_size=5), max_size=4)


def cut(text, stop):
    places = [text.find(string) for string in stop if string in text]
    return text[: min(places)] if places else text


@given(pieces=st.lists(texts, max_size=8), stop=stops)
def test_output_is_the_reply_up_to_the_first_stop(pieces, stop):
    stops = StopFilter(stop)
    shown = ""
    for piece in pieces:
        shown += stops.push(piece)
        assert cut("".join(pieces), stop).startswith(shown)
    shown += stops.flush()
    assert shown == cut("".join(pieces), stop)
    assert stops.hit == any(string in "".join(pieces) for string in stop)


@given(text=texts, stop=stops)
def test_nothing_is_held_back_without_a_reason(text, stop):
    stops = StopFilter(stop)
    shown = stops.push(text)
    held = text[len(shown) :]
    assert stops.hit or not held or any(string.startswith(held[:1]) for string in stop)


def test_half_of_a_role_never_shows():
    stops = StopFilter(["\nUser:", "\nAssistant:"])
    shown = [stops.push(piece) for piece in ("Hi.", "\n", "Us", "es", "\n", "User", ":", " more")]
    assert shown == ["Hi.", "", "", "\nUses", "", "", "", ""]
    assert stops.hit
    assert stops.flush() == ""


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="stop string"):
        StopFilter(["\n", ""])
