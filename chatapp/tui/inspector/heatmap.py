"""A map of all heads of a model, a row a layer, one of them chosen.

Keep: what a colour says is said by a number too, and without colours by how bold it is.
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

from chatapp.shading import ink_on, weight_color

_WIDEST = 8
"""Columns that a head gets at most."""


class HeatMap(ScrollView, can_focus=True):
    """A row a layer, a column a head; one cell chosen, or none for the average of all."""

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
        """Another head was chosen, or the average."""

    def __init__(self) -> None:
        super().__init__()
        self.cell: tuple[int, int] | None = None
        """Layer and head from 0."""
        self._cells: list[list[float]] = []

    def show(self, cells: list[list[float]]) -> None:
        """Show other weights (layers, heads)."""
        if self.cell is not None and (len(cells), len(cells[0])) != self._shape:
            self.cell = None
        self._cells = cells
        size = Size(1, len(cells) + 1)
        if size != self.virtual_size:
            self.virtual_size = size
            self.refresh(layout=True)
        self.refresh()

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self._cells), len(self._cells[0]) if self._cells else 0

    @property
    def _room(self) -> int:
        """Columns of a head: as many as there are, but one where a number would not fit."""
        room = (self.size.width - 4) // max(1, self._shape[1])
        return min(room, _WIDEST) if room >= 3 else 1

    def render_line(self, y: int) -> Strip:
        base, width = self.rich_style, self.size.width
        y += self.scroll_offset.y
        layers, heads = self._shape
        if not 0 <= y <= layers or not heads:
            return Strip.blank(width, base)
        dim = base + Style(dim=True)
        room = self._room
        if y == 0:
            names = [
                f"{head:>{room}}" if room > 1 else str(head % 10) for head in range(1, heads + 1)
            ]
            segments = [Segment("  L ", dim), Segment("".join(names), dim)]
            return Strip(segments).adjust_cell_length(width, base)
        segments = [Segment(f"{y:>3} ", dim)]
        for head, weight in enumerate(self._cells[y - 1]):
            number = min(99, round(100 * weight)) if room > 1 else min(9, int(10 * weight))
            style = base + self._style(weight, (y - 1, head) == self.cell)
            segments.append(Segment(f"{number:>{room}}", style))
        return Strip(segments).adjust_cell_length(width, base)

    def _style(self, weight: float, chosen: bool) -> Style:
        if chosen:
            return Style(reverse=True, bold=True, underline=not self.has_focus)
        if self.app.native_ansi_color:
            return Style(dim=weight < 0.05, bold=weight > 0.3)
        color = weight_color(weight**0.5)  # most are small
        return Style(color=RichColor.from_rgb(*ink_on(color)), bgcolor=RichColor.from_rgb(*color))

    def _choose(self, cell: tuple[int, int] | None) -> None:
        if cell != self.cell:
            self.cell = cell
            if cell is not None:
                row = Region(0, cell[0] + 1, 1, 1)
                self.scroll_to_region(row, animate=False, force=True)
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
        layer, head = event.y + self.scroll_offset.y - 1, (event.x - 4) // self._room
        if 0 <= layer < layers and 0 <= head < heads and event.x >= 4:
            self._choose((layer, head))
