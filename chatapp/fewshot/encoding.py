"""Segments of a prompt as tokens of a model.

Keep: a special token comes of a marker of a template alone, and every other text is encoded as
text, whatever stands in it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from chatapp.engine.model import Tokenizer
from chatapp.prompting.segments import Segment


def segment_ids(
    segment: Segment, tokenizer: Tokenizer, encode: Callable[[str], list[int]] | None = None
) -> list[int]:
    """The tokens of a segment. encode: the tokenizer's own, or one that remembers."""
    if segment.kind == "end":
        return [tokenizer.end_id]
    if segment.kind == "special":
        return [tokenizer.special[segment.text]]
    return (encode or tokenizer.encode)(segment.text)


class Started(Protocol):
    """What is known of a model that puts tokens before each sequence; see `LanguageModel`."""

    tokenizer: Tokenizer
    start: Sequence[int]


def without_start(segments: Sequence[Segment], model: Started) -> list[Segment]:
    """The segments without the tokens that the model puts before each sequence itself."""
    start = len(model.start)
    first = [segment_ids(segment, model.tokenizer) for segment in segments[:start]]
    return list(segments[start:] if first == [[id] for id in model.start] else segments)
