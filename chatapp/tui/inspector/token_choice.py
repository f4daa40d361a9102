"""Where a token and a head are chosen: a text as coloured tokens, a map of layers and heads."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.events import Click, Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.style import Style as ContentStyle

from chatapp.common.shading import (
    RGB,
    cell_color,
    cell_number,
    head_name,
    hexadecimal,
    ink_on,
    likelihood_color,
    signed_color,
    signed_number,
    visible,
    weight_color,
)
from chatapp.lab.drawing.blocks import NOTHING, Map, RowPiece, layout
from chatapp.tui.platform.actions import Acting, Action

LONGEST = 16
"""Columns of a token in a list."""


def quoted(text: str) -> Content:
    """A token between bars, so that its spaces are visible."""
    shown = Content(visible(text) or NOTHING).truncate(LONGEST, ellipsis=True)
    return Content.assemble(("│", "dim"), shown, ("│", "dim"))


def padded(text: str) -> Content:
    """A token between bars, padded to a column."""
    piece = quoted(text)
    return piece.pad_right(max(0, LONGEST + 2 - piece.cell_length))


LEVELS = (Style(dim=True), Style(), Style(bold=True), Style(bold=True, underline=True))
"""The styles of `Paint`'s levels without colours."""


class Paint(NamedTuple):
    """The appearance of a token: its colour, and a level from 0 to 3 for terminals
    without colours."""

    color: RGB
    level: int


def surprise(probability: float) -> Paint:
    """For a token of this probability: the less likely, the more prominent."""
    level = sum(probability < bound for bound in (0.5, 0.1, 0.01))
    return Paint(likelihood_color(probability), level)


def attended(share: float) -> Paint:
    """For a token whose attention weight is this fraction of the largest."""
    return Paint(weight_color(share), sum(share > bound for bound in (0.1, 0.4, 0.75)))


class TokenText(Acting, ScrollView, can_focus=True):
    """Tokens in running text. `cursor` is the chosen one."""

    BINDING_GROUP_TITLE = "Inspector: the text"
    DEFAULT_CSS = """
    TokenText {
        height: auto;
        max-height: 50%;
        overflow-x: hidden;
        overflow-y: auto;
    }
    """

    @dataclass
    class Moved(Message):
        """The user chose another token."""

        sender: "TokenText"
        position: int

        @property
        def control(self) -> "TokenText":
            return self.sender

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor = 0
        self.texts: Sequence[str] = ()
        self._paints: Sequence[Paint | None] = ()
        self._held: int | None = None
        self._width = 0
        self._rows: list[list[RowPiece]] = []
        self._first_row: list[int] = []

    def show(self, texts: Sequence[str], cursor: int) -> None:
        """Show other tokens, without colours."""
        self.texts = texts
        self._paints = [None] * len(texts)
        self._held = None
        self.cursor = max(0, min(cursor, len(texts) - 1))
        self._width = 0
        self._rows, self._first_row = [], []
        self.refresh(layout=True)
        self.call_after_refresh(self._show_cursor)

    def paint(self, paints: Sequence[Paint | None], held: int | None = None) -> None:
        """Colour the tokens; those beyond the end of `paints` have no colour.

        held: a second token to mark.
        """
        self._paints = [*paints, *[None] * (len(self.texts) - len(paints))]
        self._held = held
        self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        if width > 0 and width != self._width:
            self._width = width
            # A line break's mark may be after the last column of a row, and so may the scrollbar.
            self._rows = layout(self.texts, max(1, width - 2))
            self._first_row = [0] * len(self.texts)
            for y in reversed(range(len(self._rows))):
                for piece in self._rows[y]:
                    self._first_row[piece.token] = y
            self.virtual_size = Size(width, len(self._rows))
        return len(self._rows)

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self._show_cursor)

    def _show_cursor(self) -> None:
        if self.cursor < len(self._first_row):
            row = Region(0, self._first_row[self.cursor], 1, 1)
            self.scroll_to_region(row, animate=False, force=True)

    def render_line(self, y: int) -> Strip:
        base = self.rich_style
        width = self.size.width
        y += self.scroll_offset.y
        if not 0 <= y < len(self._rows):
            return Strip.blank(width, base)
        segments = [Segment(text, base + self._style(index)) for index, _, text in self._rows[y]]
        return Strip(segments).adjust_cell_length(width, base)

    def _style(self, index: int) -> Style:
        paint = self._paints[index]
        if index == self.cursor:
            return Style(reverse=True, bold=True, underline=not self.has_focus)
        if index == self._held:
            return Style(bold=True, underline=True, italic=True)
        if self.app.native_ansi_color:
            if paint is None:
                return Style(dim=index % 2 == 1)
            return LEVELS[paint.level]
        if paint is None:
            # Two tones make the boundaries visible.
            tone = self.background_colors[1].blend(self.colors[3], 0.12 if index % 2 else 0.05)
            return Style(bgcolor=tone.rich_color)
        return Style(
            color=RichColor.from_rgb(*ink_on(paint.color)), bgcolor=RichColor.from_rgb(*paint.color)
        )

    def choose(self, position: int) -> None:
        """Choose a token that was chosen elsewhere."""
        if position != self.cursor and position < len(self.texts):
            self.cursor = position
            self.call_after_refresh(self._show_cursor)
            self.refresh()
            self.post_message(self.Moved(self, position))

    def _go(self, position: int) -> None:
        position = max(0, min(position, len(self.texts) - 1))
        if self._first_row and position != self.cursor:
            self.cursor = position
            self._show_cursor()
            self.refresh()
            self.post_message(self.Moved(self, position))

    @Action("Previous token", "left", call="move(-1)", name="previous_token")
    @Action("Next token", "right", call="move(1)", name="next_token")
    def action_move(self, step: int) -> None:
        self._go(self.cursor + step)

    @Action("First token", "home", call="go(0)", name="first_token")
    @Action("Last token", "end", call="go(-1)", name="last_token")
    def action_go(self, place: int) -> None:
        self._go(place if place >= 0 else len(self.texts) + place)

    @Action("Row above", "up", call="row(-1)", name="row_above")
    @Action("Row below", "down", call="row(1)", name="row_below")
    def action_row(self, step: int) -> None:
        if not self._first_row:
            return
        row = self._first_row[self.cursor]
        x = next(piece.x for piece in self._rows[row] if piece.token == self.cursor)
        y = max(0, min(row + step, len(self._rows) - 1))
        while 0 < y < len(self._rows) - 1 and not self._rows[y]:
            y += 1 if step > 0 else -1  # an empty line has no token
        if self._rows[y]:
            self._go(self._at(x, y))

    @Action("Page up", "pageup", call="page(-1)", name="tokens_up")
    @Action("Page down", "pagedown", call="page(1)", name="tokens_down")
    def action_page(self, step: int) -> None:
        self.action_row(step * max(1, self.size.height - 1))

    def _at(self, x: int, y: int) -> int:
        """The token at a column of a row, or the last one before it."""
        return max((p for p in self._rows[y] if p.x <= x), key=lambda p: p.x).token

    def on_click(self, event: Click) -> None:
        y = event.y + self.scroll_offset.y
        if 0 <= y < len(self._rows) and self._rows[y]:
            self._go(self._at(event.x, y))


_PROBABILITIES = (("under 1 %", 0.005), ("10 %", 0.05), ("50 %", 0.3), ("100 %", 1.0))
_WEIGHTS = (("little", 0.05), ("some", 0.4), ("much", 0.7), ("most", 1.0))


def likelihood_legend(few_colors: bool) -> Content:
    """The probability of each token under the model."""
    swatches = ((words, surprise(probability)) for words, probability in _PROBABILITIES)
    return Content("probability ") + _swatches(swatches, few_colors)


def weight_legend(few_colors: bool, of: str = "attention") -> Content:
    """The attention weight of each token, or another number from 0 to 1."""
    swatches = ((words, attended(share)) for words, share in _WEIGHTS)
    return Content(f"{of} ") + _swatches(swatches, few_colors)


def _swatches(swatches: Iterable[tuple[str, Paint]], few_colors: bool) -> Content:
    parts = []
    for words, paint in swatches:
        style: str | ContentStyle = (
            f"{hexadecimal(ink_on(paint.color))} on {hexadecimal(paint.color)}"
        )
        if few_colors:
            style = ContentStyle.from_rich_style(LEVELS[paint.level])
        parts.append(Content.styled(f" {words} ", style))
    return Content(" ").join(parts)


_WIDEST, _TALLEST = 14, 3
"""Most columns and rows of a head."""
_MARGIN = 8
"""Columns of a layer's name."""


class HeatMap(Acting, ScrollView, can_focus=True):
    """A row per layer, a column per head; one cell chosen, or none for the average of all."""

    BINDING_GROUP_TITLE = "Inspector: layers and heads"
    DEFAULT_CSS = """
    HeatMap {
        height: 1fr;
        overflow-x: hidden;
        overflow-y: auto;
    }
    """

    class Chosen(Message):
        """The user chose another head, or the average."""

    def __init__(self) -> None:
        super().__init__()
        self.cell: tuple[int, int] | None = None
        """Layer and head from 0."""
        self.map = Map([])
        self._header, self._tall = 1, 1

    def show(self, grid: Map) -> None:
        """Show other values (layers, heads). A cell that they do not have is no longer chosen."""
        self.map = grid
        layers, heads = self._shape
        if self.cell and grid.values and not (self.cell[0] < layers and self.cell[1] < heads):
            self.cell = None  # another model has fewer
        self._fit()
        self.refresh()
        self.call_after_refresh(self._show_cell)

    def on_resize(self) -> None:
        self._fit()
        self.call_after_refresh(self._show_cell)

    def _show_cell(self) -> None:
        """Scroll to the chosen cell."""
        if self.cell is not None:
            row = Region(0, self._header + self.cell[0] * self._tall, 1, self._tall)
            self.scroll_to_region(row, animate=False, force=True)

    def _fit(self) -> None:
        """Let cells be as tall as there is room."""
        layers, height = len(self.map.values), self.size.height
        self._header = 2 if height >= layers + 2 else 1
        self._tall = max(1, min(_TALLEST, (height - self._header) // max(1, layers)))
        size = Size(1, layers * self._tall + self._header)
        if size != self.virtual_size:
            self.virtual_size = size
            self.refresh(layout=True)

    @property
    def _shape(self) -> tuple[int, int]:
        values = self.map.values
        return len(values), len(values[0]) if values else 0

    @property
    def _room(self) -> int:
        """Columns per head: as many as available, but one if a number would not fit."""
        room = (self.size.width - _MARGIN) // max(1, self._shape[1])
        return min(room, _WIDEST) if room >= 3 else 1

    def render_line(self, y: int) -> Strip:
        base, width = self.rich_style, self.size.width
        y += self.scroll_offset.y
        layers, heads = self._shape
        layer, part = divmod(y - self._header, self._tall)
        if layer >= layers or not heads:
            return Strip.blank(width, base)
        dim = base + Style(dim=True)
        room = self._room
        if layer < 0:
            names = "".join(head_name(head, room) for head in range(heads))
            words = f"layer ↓ {names}" if y == self._header - 1 else f"{'head →':>{_MARGIN + room}}"
            return Strip([Segment(words, dim)]).adjust_cell_length(width, base)
        is_named = part == (self._tall - 1) // 2
        segments = [Segment(f"{layer if is_named else '':>{_MARGIN - 1}} ", dim)]
        for head, value in enumerate(self.map.values[layer]):
            style = base + self._style(value, (layer, head) == self.cell)
            words = self._words(layer, head, value) if is_named else " " * room
            segments.append(Segment(words, style))
        return Strip(segments).adjust_cell_length(width, base)

    def _words(self, layer: int, head: int, value: float) -> str:
        """What stands in a cell: the letter of a name, where there is room, and the number."""
        grid, room = self.map, self._room
        if grid.is_signed:
            return signed_number(value, grid.largest, room)
        letter = grid.letters[layer][head].strip("·") if grid.letters else ""
        if room < 4 or not letter:
            return cell_number(value, room)
        return f"{letter}{cell_number(value, 2 + (room > 4))}".rjust(room)

    def _style(self, value: float, chosen: bool) -> Style:
        grid = self.map
        share = value / grid.largest if grid.is_signed and grid.largest else value
        if chosen:
            return Style(reverse=True, bold=True, underline=not self.has_focus)
        if self.app.native_ansi_color:
            least, most = (0.2, 0.5) if grid.is_signed else (0.05, 0.3)
            return Style(dim=abs(share) < least, bold=abs(share) > most)
        color = signed_color(share) if grid.is_signed else cell_color(share)
        return Style(color=RichColor.from_rgb(*ink_on(color)), bgcolor=RichColor.from_rgb(*color))

    def _choose(self, cell: tuple[int, int] | None) -> None:
        if cell != self.cell:
            self.cell = cell
            self._show_cell()
            self.refresh()
            self.post_message(self.Chosen())

    @Action("Previous head", "left", call="move(0, -1)", name="previous_head")
    @Action("Next head", "right", call="move(0, 1)", name="next_head")
    @Action("Previous layer", "up", call="move(-1, 0)", name="previous_layer")
    @Action("Next layer", "down", call="move(1, 0)", name="next_layer")
    def action_move(self, down: int, right: int) -> None:
        layers, heads = self._shape
        if not heads:
            return
        layer, head = self.cell or (layers - 1 - down, 0 - right)
        self._choose((max(0, min(layer + down, layers - 1)), max(0, min(head + right, heads - 1))))

    @Action("Average of all layers and heads", "a", name="average_heads")
    def action_average(self) -> None:
        self._choose(None)

    def on_click(self, event: Click) -> None:
        layers, heads = self._shape
        layer = (event.y + self.scroll_offset.y - self._header) // self._tall
        head = (event.x - _MARGIN) // self._room
        if 0 <= layer < layers and 0 <= head < heads:
            self._choose((layer, head))
