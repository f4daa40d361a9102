"""A prompt as it is shown: its text coloured by where each part comes from, its examples.

Keep: it is the text itself that is shown, every character of it, with stand-ins for those that a
terminal would obey.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from textual.content import Content

from chatapp.foreign import printable

if TYPE_CHECKING:
    from chatapp.dialogue.prompt import Shot
    from chatapp.passages.sources import Source
    from chatapp.prompting.segments import Segment

_KINDS = {
    "instruction": "$text-warning",
    "example": "$text-secondary",
    "document": "$text-primary",
    "user": "$text-success",
    "assistant": "$text-accent",
    "thinking": "dim italic",
    "tool": "$text-error",
    "marker": "dim",
    "special": "reverse dim",
    "end": "reverse dim",
}
_LINE = 200


def legend(segments: "Iterable[Segment]") -> Content:
    """The kinds of text in a prompt, each in its colour."""
    kinds = dict.fromkeys(segment.kind for segment in segments)
    return Content("  ").join(Content.styled(kind, _KINDS[kind]) for kind in kinds)


def colored(segments: "Iterable[Segment]") -> Content:
    """The text of a prompt."""
    return Content("").join(
        Content.styled(printable(segment.text), _KINDS[segment.kind]) for segment in segments
    )


def one_line(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(printable(text[: 2 * _LINE]).split())
    return line if len(line) <= _LINE else line[: _LINE - 1] + "…"


def shot_lines(shots: "Sequence[Shot]", dropped: "Sequence[Shot]") -> Iterator[Content]:
    """The examples of a prompt with how near each is, and those that did not fit."""
    if shots:
        ranked = shots[0].similarity is not None
        words = "Examples for this message, nearest first" if ranked else "Examples"
        yield Content.styled(words, "bold")
        yield from map(_shot, shots)
    if dropped:
        words = f"Left out for length: {len(dropped)} example{'s' * (len(dropped) > 1)}"
        yield Content.styled(words, "$text-warning")
        yield from map(_shot, dropped)


def source_lines(sources: "Sequence[Source]") -> Iterator[Content]:
    """The passages that were found for a message with how near each is, and those left out."""
    if sources:
        yield Content.styled("Passages for this message, nearest first", "bold")
        yield from (_source(source) for source in sources if source.number)
    if dropped := [source for source in sources if not source.number]:
        words = f"Left out for length: {len(dropped)} passage{'s' * (len(dropped) > 1)}"
        yield Content.styled(words, "$text-warning")
        yield from map(_source, dropped)


def _source(source: "Source") -> Content:
    return Content.assemble(
        (f"{source.score:7.3f}  ", "$text-accent"),
        source_place(source),
        (f"  {one_line(source.text)}", "dim"),
    )


def source_place(source: "Source") -> str:
    """The number, file and place of a passage, on one line."""
    number = f"[{source.number}] " if source.number else ""
    return one_line(f"{number}{source.name}, {source.place}")


def _shot(shot: "Shot") -> Content:
    nearness = "" if shot.similarity is None else f"{shot.similarity:6.2f}  "
    return Content.assemble(
        (nearness, "$text-accent"),
        (one_line(shot.input), "dim"),
        (" → ", "dim"),
        one_line(shot.output),
    )
