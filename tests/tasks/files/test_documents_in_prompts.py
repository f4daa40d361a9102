"""Passages as segments of their own, whatever stands around them, and what was asked for."""

import pytest

from chatapp.prompting.messages import Segment, set_apart
from chatapp.tasks.files.documents import DocumentsError, DocumentSet

PASSAGES = ("one\n\n", "two\n\n")


def test_passages_are_segments_of_their_own():
    segments = [
        Segment("user", "hi"),
        Segment("marker", "\n"),
        Segment("user", "one\n\ntwo\n\nWhy?"),
    ]
    assert set_apart(segments, PASSAGES) == [
        *segments[:2],
        Segment("document", "one\n\n"),
        Segment("document", "two\n\n"),
        Segment("user", "Why?"),
    ]


def test_what_comes_before_them_stays():
    first, *_ = set_apart([Segment("user", "Q: one\n\ntwo\n\nWhy?")], PASSAGES)
    assert first == Segment("marker", "Q: ")


@pytest.mark.parametrize("text", ["ONE\n\nTWO\n\nWhy?", "Why?"])
def test_a_message_that_was_changed_stays_as_it_is(text):
    assert set_apart([Segment("user", text)], PASSAGES) == [Segment("user", text)]
    assert set_apart([], PASSAGES) == []


def test_plain_data_and_back():
    asked = DocumentSet(("a", "b"), "both:minilm", 3, 100)
    assert DocumentSet.from_dict(asked.to_dict()) == asked


@pytest.mark.parametrize("method", ["best", "bm25:minilm", "both:"])
def test_ways_to_search_there_are_not(method):
    with pytest.raises(DocumentsError, match="not a way to search"):
        DocumentSet(("a",), method)
