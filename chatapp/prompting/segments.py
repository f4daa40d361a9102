"""A prompt as a list of segments, so that every character of it has a known origin.

Keep: the concatenated texts are the exact string the model sees, and segments are encoded into
tokens one by one, which makes the tokens of a prompt a prefix of the tokens of the same
prompt with its reply.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "instruction",
    "example",
    "document",
    "user",
    "assistant",
    "thinking",
    "tool",
    "marker",
    "special",
    "end",
]


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt.

    `document` is a passage that stands before a question, `tool` what a tool has told. `marker`
    is text of the template ("User:"). `special` is the name of a special token, and `end` stands
    for the model's end-of-text token: their texts are what is shown, and each becomes its one
    token, never its letters.
    """

    kind: Kind
    text: str


END_OF_TEXT = Segment("end", "<|endoftext|>")


def text_of(segments: Iterable[Segment]) -> str:
    """The prompt as the one string it is."""
    return "".join(segment.text for segment in segments)
