"""A prompt as displayed: coloured by the origin of its parts, with examples; differing words."""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from textual.content import Content

from chatapp.common.foreign import printable

if TYPE_CHECKING:
    from chatapp.dialogue.documents.sources import Source
    from chatapp.dialogue.writers.prompt import Shot
    from chatapp.prompting.messages import Segment


def _on(part: str) -> str:
    """The style of a prompt's part; see `theme.PARTS`."""
    return f"$part-{part}-ink on $part-{part}"


_KINDS = {
    "instruction": _on("instruction"),
    "example": _on("example"),
    "document": _on("document"),
    "user": _on("user"),
    "assistant": _on("assistant"),
    "thinking": "dim italic",
    "tool": _on("tool"),
    "marker": "dim",
    "special": "reverse dim",
    "end": "reverse dim",
}
_FIELDS = tuple(map(_on, ("example", "user", "document", "assistant", "tool")))
"""The colours of named fields, in the order in which the prompt first holds them."""
_LINE = 200


def in_rows(keys: str, columns: int) -> str:
    """Keys with their words, between dots, in rows of so many columns: none is in two rows."""
    rows = [""]
    for key in keys.split(" · "):
        longer = f"{rows[-1]} · {key}" if rows[-1] else key
        if cell_len(longer) <= columns or not rows[-1]:
            rows[-1] = longer
        else:
            rows.append(key)
    return "\n".join(rows)


def legend(segments: "Sequence[Segment]") -> Content:
    """The kinds of text in a prompt and the names of its fields, each in its colour."""
    styles = {segment.name or segment.kind: style for segment, style in _styled(segments)}
    return Content("  ").join(
        Content.styled(printable(name), style) for name, style in styles.items()
    )


def colored(segments: "Sequence[Segment]") -> Content:
    """The coloured text of a prompt."""
    return Content("").join(
        Content.styled(printable(segment.text), style) for segment, style in _styled(segments)
    )


def _styled(segments: "Sequence[Segment]") -> "Iterator[tuple[Segment, str]]":
    """Each segment with its style: that of its kind, or of its field where the layout names it."""
    names = list(dict.fromkeys(segment.name for segment in segments if segment.name))
    for segment in segments:
        if not segment.name:
            yield segment, _KINDS[segment.kind]
            continue
        style = _FIELDS[names.index(segment.name) % len(_FIELDS)]
        yield segment, f"bold {style}" if segment.kind in ("user", "assistant") else style


def one_line(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(printable(text[: 2 * _LINE]).split())
    return line if len(line) <= _LINE else line[: _LINE - 1] + "…"


def shot_lines(shots: "Sequence[Shot]", dropped: "Sequence[Shot]") -> Iterator[Content]:
    """The examples of a prompt with their similarities, and those that did not fit."""
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
    """The passages for a message with their scores, and those left out."""
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


Span = tuple[int, int]
"""The beginning and end of a piece of text, in characters."""

_ALIKE = 1 / 3
"""The least fraction of common words at which marking the others is useful."""


class TextDifference(NamedTuple):
    """The spans of two texts that differ; none if they have little in common. Also in words."""

    left: tuple[Span, ...]
    right: tuple[Span, ...]
    words: str


def difference(left: str, right: str) -> TextDifference:
    """Compare two texts; white space does not count."""
    words = [list(re.finditer(r"\w+|[^\w\s]", text)) for text in (left, right)]
    before, after = ([word.group() for word in side] for side in words)
    matcher = SequenceMatcher(None, before, after)
    if before == after:
        return TextDifference((), (), "Both replies are the same.")
    if matcher.ratio() < _ALIKE:
        return TextDifference((), (), "The two replies have little in common.")
    spans: tuple[list[Span], list[Span]] = ([], [])
    counts = [0, 0]
    for tag, *bounds in matcher.get_opcodes():
        for side, (first, last) in enumerate((bounds[:2], bounds[2:])):
            if tag != "equal" and first < last:
                spans[side].append((words[side][first].start(), words[side][last - 1].end()))
                counts[side] += last - first
    marks = ", ".join(
        f"{count} of {len(side)} words at the {name}"
        for count, side, name in zip(counts, words, ("left", "right"), strict=True)
    )
    return TextDifference(tuple(spans[0]), tuple(spans[1]), f"Differences are marked: {marks}.")
