"""The parts of one message: its text, thoughts and tool calls.

A reply arrives word by word, and a Static would wrap all of it again each time. `TextBody` wraps
only the last row, which can still change, so that the cost of a reply is linear in its length.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import chop_cells
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Static

from chatapp.common.foreign import printable

if TYPE_CHECKING:
    from chatapp.prompting.messages import Call


_TAB_SIZE = 4


class ScreenRow(NamedTuple):
    """One row on the screen: `text` begins at character `start` of line number `line`."""

    line: int
    start: int
    text: str


def row_bounds(text: str, start: int, width: int) -> Iterator[tuple[int, int]]:
    """The beginning and end of a line's rows, from character `start` on.

    A row ends before white space, which is not shown, or in the middle of a word that is longer
    than a row. It depends only on the text up to the beginning of the next row.
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
    """The number of characters from `start` on that fit a row."""
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
    """The position of the first character from `start` on that is not white space."""
    while start < len(text) and text[start].isspace():
        start += 1
    return start


class TextBody(Widget):
    """Foreign text shown unchanged, without markup, selectable with the mouse."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._lines = [""]
        self._rows: list[ScreenRow] = []
        self._wrapped_to = 0
        self._marks: list[tuple[int, int, int]] = []
        self.append(text)

    @property
    def text(self) -> str:
        """The displayed text."""
        return "\n".join(self._lines)

    def mark(self, spans: Sequence[tuple[int, int]]) -> None:
        """Highlight some pieces of `text`, until it is replaced.

        spans: the beginning and end of each, in characters.
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
        self._rows = [ScreenRow(0, 0, "")]
        self._marks = []
        self.append(text)
        self.refresh(layout=True)

    def _wrap_from(self, line: int, start: int) -> None:
        """Add the rows from character `start` of a line on, where a row must begin."""
        for index in range(line, len(self._lines)):
            text = self._lines[index]
            for row_start, row_end in row_bounds(text, start, self._wrapped_to):
                self._rows.append(ScreenRow(index, row_start, text[row_start:row_end]))
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


_WORDS = {
    "running": "under way",
    "done": "",
    "failed": "failed",
    "refused": "not allowed",
    "stopped": "stopped",
}


class ToolCalls(Vertical):
    """The calls of one reply; nothing if there are none."""

    def __init__(self) -> None:
        lines = Static(markup=False)
        super().__init__(lines)
        self._lines = lines
        self._calls: tuple[Call, ...] = ()
        self._is_open = False
        self.display = False

    def show(self, calls: "Sequence[Call]") -> None:
        """Show the calls of a reply."""
        self._calls = tuple(calls)
        self.display = bool(calls)
        self._tell()

    def toggle(self) -> None:
        """Open all results, or fold them."""
        self._is_open = not self._is_open
        self._tell()

    def show_last(self, call: "Call", *, has_ended: bool) -> None:
        """Show one more running call, or the result of the last one."""
        self.show([*(self._calls[:-1] if has_ended else self._calls), call])

    def _tell(self) -> None:
        self._lines.update(printable("\n".join(map(self._describe_call, self._calls))))

    def _describe_call(self, call: "Call") -> str:
        from chatapp.dialogue.tools.tool import call_in_words

        status = _WORDS[call.status]
        line = call_in_words(call.name, call.arguments) + (f" · {status}" if status else "")
        if self._is_open:
            return "\n".join([f"▾ {line}", *(f"  {part}" for part in call.result.splitlines())])
        first, *more = call.result.splitlines() or [""]
        if call.status != "done":
            return f"▸ {line}"
        return f"▸ {line}: {first}{' …' if more else ''}"


class Thoughts(Vertical):
    """The thoughts of one reply; nothing if there are none."""

    def __init__(self) -> None:
        line, body = Static(markup=False), TextBody()
        super().__init__(line, body)
        self._line, self._body = line, body
        self._text = ""
        self._words = ""
        self._body.display = self.display = False

    def show(self, text: str, tokens: int) -> None:
        """Show the thoughts of a reply, with their number of tokens; 0 if unknown."""
        if text != self._text:
            self._body.replace(text.strip())
        self._text = text
        self.display = bool(text.strip())
        self._tell(f"thought for {tokens} tokens" if tokens else "thought")

    def append(self, text: str, tokens: int) -> None:
        """Add to the current thought; tokens: their number so far."""
        self._body.append(text if self._text else text.lstrip())
        self._text += text
        self.display = True
        self._tell(f"thinking · {tokens} tokens")

    def toggle(self) -> None:
        """Open the thoughts, or fold them."""
        self._body.display = not self._body.display
        self._tell(self._words)

    def _tell(self, words: str) -> None:
        self._words = words
        self._line.update(f"{'▾' if self._body.display else '▸'} {words}")
