"""The text of one message, wrapped row by row.

A reply arrives a word at a time, and a Static would wrap all of it anew at each. This widget
wraps only what can still change, the last row, so that the cost of a reply grows with its
length and not with its square.

Keep: the rows are the same as if the whole text had been wrapped at once.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import chop_cells
from textual.content import Content
from textual.geometry import Size
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget

from chatapp.foreign import printable

_TAB_SIZE = 4


class Row(NamedTuple):
    """One row on the screen: `text` begins at character `start` of line number `line`."""

    line: int
    start: int
    text: str


def row_bounds(text: str, start: int, width: int) -> Iterator[tuple[int, int]]:
    """Where the rows of a line begin and end, from character `start` on.

    A row ends before white space, which is not shown, or in the middle of a word that is
    longer than a row. It depends on nothing that comes after the beginning of the next.
    """
    while True:
        end = start + _fitting(text, start, width)
        if end >= len(text):
            yield start, len(text)
            return
        end = max(end, start + 1)
        if not text[end].isspace() and not text[end - 1].isspace():
            words = text[start:end].rsplit(None, 1)
            if len(words) == 2:
                end -= len(words[1])
        yield start, start + len(text[start:end].rstrip())
        start = _next_word(text, end)
        if start == len(text):
            return


def _fitting(text: str, start: int, width: int) -> int:
    """How many characters from `start` on fit a row."""
    fitting = 0
    # Combining characters take no room, but no script has seven of them on each.
    for reach in (2 * width, 8 * width):
        chunk = text[start : start + reach]
        pieces = chop_cells(chunk, width)
        fitting = len(pieces[0]) if pieces else len(chunk)
        if fitting < len(chunk):
            break
    return fitting


def _next_word(text: str, start: int) -> int:
    """The place of the first character from `start` on that is no white space."""
    while start < len(text) and text[start].isspace():
        start += 1
    return start


class TextBody(Widget):
    """Foreign text shown as it is, without markup, selectable with the mouse."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._lines = [""]
        self._rows: list[Row] = []
        self._wrapped_to = 0
        self._marks: list[tuple[int, int, int]] = []
        self.append(text)

    @property
    def text(self) -> str:
        """The text as it is shown."""
        return "\n".join(self._lines)

    def mark(self, spans: Sequence[tuple[int, int]]) -> None:
        """Let some pieces of `text` stand out, until it is replaced.

        spans: where each begins and ends, in characters.
        """
        self._marks = []
        start = 0
        for number, line in enumerate(self._lines):
            end = start + len(line)
            for first, last in spans:
                if first < end and last > start:
                    self._marks.append((number, max(first, start) - start, min(last, end) - start))
            start = end + 1
        self.refresh()

    def append(self, text: str) -> None:
        """Add text at the end."""
        first, *rest = printable(text).split("\n")
        self._lines[-1] = (self._lines[-1] + first).expandtabs(_TAB_SIZE)
        self._lines += [line.expandtabs(_TAB_SIZE) for line in rest]
        if self._wrapped_to:
            before = len(self._rows)
            self._wrap_from(*self._rows.pop()[:2])
            self.refresh(layout=len(self._rows) != before)

    def replace(self, text: str) -> None:
        """Show another text instead."""
        self._lines = [""]
        self._rows = [Row(0, 0, "")]
        self._marks = []
        self.append(text)
        self.refresh(layout=True)

    def _wrap_from(self, line: int, start: int) -> None:
        """Add the rows from character `start` of a line on, which must begin a row."""
        for index in range(line, len(self._lines)):
            text = self._lines[index]
            for row_start, row_end in row_bounds(text, start, self._wrapped_to):
                self._rows.append(Row(index, row_start, text[row_start:row_end]))
            start = 0

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        if width > 0 and width != self._wrapped_to:
            self._wrapped_to = width
            self._rows.clear()
            self._wrap_from(0, 0)
        return len(self._rows)

    def render_line(self, y: int) -> Strip:
        style = self.visual_style
        if y >= len(self._rows):
            return Strip.blank(self.size.width, style.rich_style)
        row = self._rows[y]
        content = Content(row.text)
        for line, first, last in self._marks:
            begin, end = max(0, first - row.start), min(last - row.start, len(row.text))
            if line == row.line and begin < end:
                content = content.stylize("bold underline $text-warning", begin, end)
        selection = self.text_selection
        span = selection.get_span(row.line) if selection is not None else None
        if span is not None:
            selected = Style.from_styles(self.screen.get_component_styles("screen--selection"))
            end = len(row.text) if span[1] == -1 else span[1] - row.start
            content = content.stylize(selected, max(0, span[0] - row.start), max(0, end))
        strip = Strip(content.render_segments(style), content.cell_length)
        strip = strip.extend_cell_length(self.size.width, style.rich_style)
        return strip.apply_offsets(row.start, row.line)

    def get_selection(self, selection: Selection) -> tuple[str, str]:
        return selection.extract(self.text), "\n"
