"""A map of all layers and heads as a view has it, one of them chosen.

Invariant: every colour comes with a number, and without colours with a degree of boldness.
"""

from typing import ClassVar

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from chatapp.common.shading import (
    cell_color,
    cell_number,
    head_name,
    ink_on,
    signed_color,
    signed_number,
)
from chatapp.lab.drawing.blocks import Map

_WIDEST, _TALLEST = 14, 3
"""Most columns and rows of a head."""
_MARGIN = 8
"""Columns of a layer's name."""


class HeatMap(ScrollView, can_focus=True):
    """A row per layer, a column per head; one cell chosen, or none for the average of all."""

    BINDING_GROUP_TITLE = "Inspector: layers and heads"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(0, -1)", "Previous head", show=False),
        Binding("right", "move(0, 1)", "Next head", show=False),
        Binding("up", "move(-1, 0)", "Previous layer", show=False),
        Binding("down", "move(1, 0)", "Next layer", show=False),
        Binding("a", "average", "Average of all layers and heads", show=False),
    ]
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
            self.scroll_to_region(self._row(self.cell[0]), animate=False, force=True)

    def _fit(self) -> None:
        """Let cells be as tall as there is room."""
        layers, height = len(self.map.values), self.size.height
        self._header = 2 if height >= layers + 2 else 1
        self._tall = max(1, min(_TALLEST, (height - self._header) // max(1, layers)))
        size = Size(1, layers * self._tall + self._header)
        if size != self.virtual_size:
            self.virtual_size = size
            self.refresh(layout=True)

    def _row(self, layer: int) -> Region:
        """Where a layer is."""
        return Region(0, self._header + layer * self._tall, 1, self._tall)

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

    def action_move(self, down: int, right: int) -> None:
        layers, heads = self._shape
        if not heads:
            return
        layer, head = self.cell or (layers - 1 - down, 0 - right)
        self._choose((max(0, min(layer + down, layers - 1)), max(0, min(head + right, heads - 1))))

    def action_average(self) -> None:
        self._choose(None)

    def on_click(self, event: Click) -> None:
        layers, heads = self._shape
        layer = (event.y + self.scroll_offset.y - self._header) // self._tall
        head = (event.x - _MARGIN) // self._room
        if 0 <= layer < layers and 0 <= head < heads:
            self._choose((layer, head))
