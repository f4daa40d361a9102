"""Encodes the segments of a prompt as tokens.

Invariant: special tokens come only from markers of a template; every other text is encoded as text.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from chatapp.engine.model import Tokenizer
from chatapp.prompting.messages import Segment


class Encode(Protocol):
    """The `encode` of a tokenizer, or a caching version of it."""

    def __call__(self, text: str, *, begins: bool) -> list[int]: ...


def ids_of(
    segments: Iterable[Segment],
    tokenizer: Tokenizer,
    encode: Encode | None = None,
    *,
    begins: bool = True,
) -> list[int]:
    """The tokens of consecutive segments.

    begins: whether they begin a sequence; otherwise they continue text.
    """

    def of(segment: Segment, begins: bool) -> list[int]:
        return segment_ids(segment, tokenizer, encode, begins=begins)

    return in_order(segments, of, begins=begins)


def in_order(
    segments: Iterable[Segment], of: Callable[[Segment, bool], list[int]], *, begins: bool = True
) -> list[int]:
    """Like `ids_of`. of: computes the tokens of a segment, given whether it begins a sequence or
    follows a special token.
    """
    ids: list[int] = []
    for segment in segments:
        ids += of(segment, begins)
        begins = segment.kind in ("special", "end")
    return ids


def segment_ids(
    segment: Segment, tokenizer: Tokenizer, encode: Encode | None = None, *, begins: bool = False
) -> list[int]:
    """The tokens of a segment. begins: see `Tokenizer.encode`."""
    if segment.kind == "end":
        return [tokenizer.end_id]
    if segment.kind == "special":
        return [tokenizer.special[segment.text]]
    return (encode or tokenizer.encode)(segment.text, begins=begins)


class StartsSequences(Protocol):
    """What callers need of a model that puts tokens before each sequence; see `LanguageModel`."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    start: Sequence[int]


def without_start(segments: Sequence[Segment], model: StartsSequences) -> list[Segment]:
    """The segments without the tokens that the model itself puts before each sequence."""
    start = len(model.start)
    first = [segment_ids(segment, model.tokenizer) for segment in segments[:start]]
    return list(segments[start:] if first == [[id] for id in model.start] else segments)
