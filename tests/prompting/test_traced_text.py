"""A traced text is a string like any other, and knows where its characters come from."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.prompting.traced_text import TEMPLATE, Traced, joined, origins_of, through

TEXTS = st.text(alphabet="ab \n<>|ßı", max_size=12)

KEEPING_ORIGINS: list[Callable[[Any, str], Any]] = [
    lambda text, other: text + other,
    lambda text, other: other + text,
    lambda text, other: text * 3,
    lambda text, other: text[1:-1],
    lambda text, other: text[::-1],
    lambda text, other: text.strip(),
    lambda text, other: text.strip("ab"),
    lambda text, other: text.lstrip("\n"),
    lambda text, other: text.rstrip("\n"),
    lambda text, other: text.split(),
    lambda text, other: text.split(None, 1),
    lambda text, other: text.rsplit(None, 1),
    lambda text, other: text.split(other or "a"),
    lambda text, other: text.split(other or "a", 1),
    lambda text, other: text.rsplit(other or "a", 1),
    lambda text, other: text.splitlines(),
    lambda text, other: text.splitlines(keepends=True),
    lambda text, other: text.partition(other or "a"),
    lambda text, other: text.rpartition(other or "a"),
    lambda text, other: text.replace("a", other),
    lambda text, other: text.replace("a", other, 1),
    lambda text, other: text.removeprefix(other),
    lambda text, other: text.removesuffix(other),
]

OTHERS: list[Callable[[Any, str], Any]] = [
    lambda text, other: text.replace("", other),
    lambda text, other: text.upper(),
    lambda text, other: text.lower(),
    lambda text, other: text.title(),
    lambda text, other: text.capitalize(),
    lambda text, other: text.join([other, "x", other]),
    lambda text, other: "%s and %s" % (text, other),  # noqa: UP031
    lambda text, other: "<{}>".format(text),  # noqa: UP032
    lambda text, other: f"{text}{other}",
    lambda text, other: list(text),
    lambda text, other: (text == other, text < other, hash(text) == hash(str(text)), len(text)),
]


@pytest.mark.parametrize("operation", KEEPING_ORIGINS + OTHERS)
@given(text=TEXTS, other=TEXTS)
def test_it_does_what_a_string_does(
    operation: Callable[[Any, str], Any], text: str, other: str
) -> None:
    assert operation(Traced(text, 0), other) == operation(text, other)


@given(text=TEXTS, other=st.text(alphabet="XYZ", max_size=5))
def test_characters_keep_their_origin(text: str, other: str) -> None:
    for operation in KEEPING_ORIGINS:
        results = operation(Traced(text, 7), other)
        for result in [results] if isinstance(results, str) else results:
            # What was given beside it has other letters.
            expected = [TEMPLATE if character in "XYZ" else 7 for character in result]
            assert isinstance(result, Traced)
            assert list(origins_of(result)) == expected


def test_every_part_of_a_split_lies_where_it_was() -> None:
    text = joined([Traced("a,", 0), Traced("b,a", 1), Traced(",", 2), Traced("a", 3)])
    parts = text.split(",")
    assert [list(origins_of(part)) for part in parts] == [[0], [1], [1], [3]]
    assert [list(origins_of(part)) for part in text.rsplit(",", 1)] == [[0, 0, 1, 1, 1], [3]]


def test_texts_go_whole_through_a_function() -> None:
    result = through("{0}-{1[k]}-{0}".format, Traced("a{b}", 4), {"k": Traced("c", 5)})
    assert result == "a{b}-c-a{b}"
    assert list(origins_of(result)) == [4] * 4 + [-1, 5, -1] + [4] * 4
