"""The inspector's tab on a token's attention, with a map of all heads.

Invariant: text and map show the weights of the same source token. Every colour comes with a number,
and without colours with a degree of boldness.
"""

from dataclasses import replace
from functools import partial
from typing import ClassVar

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Static

from chatapp.common.foreign import printable
from chatapp.common.shading import cell_color, cell_number, head_name, ink_on, percent
from chatapp.lab.findings import Attention
from chatapp.tui.inspector.token_text import TokenText, attended, quoted, weight_legend
from chatapp.tui.inspector.view import Compute, Look, View

_WIDEST = 8
"""Most columns per head."""


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
        self._cells: list[list[float]] = []

    def show(self, cells: list[list[float]]) -> None:
        """Show other weights (layers, heads)."""
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
        """Columns per head: as many as available, but one if a number would not fit."""
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
            names = [head_name(head, room) for head in range(heads)]
            segments = [Segment("  L ", dim), Segment("".join(names), dim)]
            return Strip(segments).adjust_cell_length(width, base)
        segments = [Segment(f"{y - 1:>3} ", dim)]
        for head, weight in enumerate(self._cells[y - 1]):
            style = base + self._style(weight, (y - 1, head) == self.cell)
            segments.append(Segment(self.words(y - 1, head, weight, room), style))
        return Strip(segments).adjust_cell_length(width, base)

    def words(self, layer: int, head: int, value: float, columns: int) -> str:
        """What stands in a cell, in so many columns."""
        return cell_number(value, columns)

    def _style(self, weight: float, chosen: bool) -> Style:
        if chosen:
            return Style(reverse=True, bold=True, underline=not self.has_focus)
        if self.app.native_ansi_color:
            return Style(dim=weight < 0.05, bold=weight > 0.3)
        color = cell_color(weight)
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


class AttentionView(View):
    """A token's attention, as shading over the text and as a map of all heads."""

    BINDING_GROUP_TITLE = "Inspector: attention"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "hold", "Pin the token, to choose what it attends to", show=False),
    ]
    hint = "← → choose a token · Enter pins it · Tab, then arrows: choose a head · a: all heads"
    formula = (
        "A = softmax(Q K^T · scale), the earlier tokens only; the weights of a token add up to 1; "
        "Vaswani et al. 2017, arXiv 1706.03762."
    )

    def legend(self) -> Content:
        return weight_legend(self.app.native_ansi_color)

    def compose(self) -> ComposeResult:
        yield Static(id="attention-detail", markup=False)
        yield TokenText(id="attention-text")
        yield HeatMap()

    def show(self, look: Look) -> None:
        self._look = look
        self._held: int | None = None
        self._attention: Attention | None = None
        text = self.query_one(TokenText)
        text.show(look.tokens.texts, self._first_choice(look))
        heat, trace = self.query_one(HeatMap), look.trace
        heat.display = True
        if trace and heat.cell and not (heat.cell[0] < trace.layers and heat.cell[1] < trace.heads):
            heat.cell = None  # another model has fewer
        self._choose()

    def _first_choice(self, look: Look) -> int:
        """The last token, but in the example sentence the pronoun."""
        texts = look.tokens.texts
        return texts.index(" he") if not look.template and " he" in texts else len(texts) - 1

    @property
    def _source(self) -> int:
        cursor = self.query_one(TokenText).cursor
        return cursor if self._held is None else self._held

    @on(TokenText.Moved)
    def _moved(self) -> None:
        self._choose()

    @on(HeatMap.Chosen)
    def _head_chosen(self) -> None:
        self._draw()

    def action_hold(self) -> None:
        text = self.query_one(TokenText)
        self._held = text.cursor if self._held is None else None
        self._choose()

    def _choose(self) -> None:
        trace, source = self._look.trace, self._source
        if trace is None:
            self._failed(self._look.reason)
        elif self._attention is not None and self._attention.position == source:
            self._draw()
        else:
            work = partial(Attention.of, trace, source)
            self.post_message(Compute(work, self._computed, self._failed, "attention"))

    def _failed(self, reason: str) -> None:
        words = Content.styled(printable(reason), "dim")
        self.query_one("#attention-detail", Static).update(words)
        self.query_one(HeatMap).display = False

    def _computed(self, attention: Attention) -> None:
        self._attention = attention
        self._draw()

    def _draw(self) -> None:
        source = self._source
        if self._attention is None or self._attention.position != source:
            return
        heat, text = self.query_one(HeatMap), self.query_one(TokenText)
        layer, head = heat.cell or (None, None)
        attention = replace(self._attention, layer=layer, head=head)
        texts, weights = attention.texts, attention.weights
        text.paint([attended(share) for share in attention.shares], self._held)
        is_pinned = self._held is not None
        target = text.cursor if is_pinned and text.cursor <= source else attention.target
        heat.show(attention.on(target))
        most = Content(" ").join(
            Content.assemble(quoted(texts[position]), f" {percent(weights[position]).strip()} ")
            for position in attention.order[:4]
        )
        detail = Content.assemble(
            quoted(texts[source]), " pinned" if is_pinned else "",
            (" attends to ", "dim"), most, ("\n" + attention.chosen, "$text-accent"),
            (f": {percent(weights[target]).strip()} on ", "dim"), quoted(texts[target]),
            ("; the map: % of each head", "dim"),
        )  # fmt: skip
        self.query_one("#attention-detail", Static).update(detail)
