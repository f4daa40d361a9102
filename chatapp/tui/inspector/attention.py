"""The inspector's tab on a token's attention: over the text, as a map of all heads, as lines.

Invariant: text, map and lines show the weights of the same source token, and text and lines those
of the same head.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from rich.console import Group
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from chatapp.common.shading import percent
from chatapp.lab.drawing.blocks import Lines, Map
from chatapp.lab.drawing.console import line_rows
from chatapp.lab.view import View
from chatapp.lab.views.attention_views import Attention
from chatapp.tui.inspector.close_up import CloserView
from chatapp.tui.inspector.heat_map import HeatMap
from chatapp.tui.inspector.token_text import TokenText, attended, quoted, weight_legend
from chatapp.tui.inspector.view import Look

_BOTH_FROM = 30
"""Rows from which on the map and the lines are shown together."""
_MOST_LINES = 60


class AttentionView(CloserView):
    """A token's attention, as shading over the text and as a map of all heads."""

    BINDING_GROUP_TITLE = "Inspector: attention"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "lines", "Lines between tokens, or the map of heads", show=False),
        Binding("enter,space", "hold", "Pin the token, to choose what it attends to", show=False),
    ]
    DEFAULT_CSS = """
    AttentionView #attention-detail { height: auto; max-height: 5; }
    AttentionView TokenText, AttentionView HeatMap { border-top: solid $border-blurred; }
    AttentionView #attention-lines { height: 1fr; border-top: solid $border-blurred; }
    """
    hint = "← → token · Enter pins it · Tab, then arrows: a head · a: all heads · l: lines"
    formula = Attention.formula

    _has_lines = False
    _attention: Attention | None = None
    _suggested: tuple[int, int] | None = None
    """Layer and head that the example sentence was opened with."""

    def legend(self) -> Content:
        return weight_legend(self.app.native_ansi_color)

    def compose(self) -> ComposeResult:
        yield Static(id="attention-detail", markup=False)
        yield TokenText(id="attention-text")
        yield HeatMap()
        with VerticalScroll(can_focus=True, id="attention-lines"):
            yield Static(id="attention-lines-text", markup=False)

    @property
    def cell(self) -> tuple[int, int] | None:
        return self.query_one(HeatMap).cell

    @property
    def _chosen(self) -> Attention | None:
        """The attention of the chosen head."""
        if self._attention is None:
            return None
        layers, heads, _ = self._attention.by_head.shape
        cell = self.cell
        is_there = cell is not None and cell[0] < layers and cell[1] < heads
        layer, head = cell if cell is not None and is_there else (None, None)
        return replace(self._attention, layer=layer, head=head)

    def views(self) -> Sequence[View]:
        return [self._chosen] if self._chosen is not None else []

    def on_resize(self) -> None:
        self._arrange()
        self._draw()

    def action_lines(self) -> None:
        self._has_lines = not self._has_lines
        self._arrange()

    def _arrange(self) -> None:
        """Show the map and the lines where both have room, else one of them."""
        is_known, is_tall = self._attention is not None, self.size.height >= _BOTH_FROM
        self.query_one(HeatMap).display = is_known and (is_tall or not self._has_lines)
        self.query_one("#attention-lines").display = is_known and (is_tall or self._has_lines)

    def show(self, look: Look) -> None:
        self._look = look
        self._held: int | None = None
        self._attention = None
        text = self.query_one(TokenText)
        text.show(look.tokens.texts, len(look.tokens.texts) - 1)
        heat = self.query_one(HeatMap)
        self._arrange()
        if heat.cell == self._suggested:
            heat.cell = None  # nobody chose it
        self._choose()

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
            self.failed(self._look.reason)
        elif self._attention is not None and self._attention.position == source:
            self._draw()
        else:
            work = lambda tell: Attention.of(trace, source)  # noqa: E731
            self.measure("Computing the attention", work, self._computed)

    def failed(self, reason: str) -> None:
        self.say(reason)
        self._attention = None
        self._arrange()

    def _computed(self, attention: Attention) -> None:
        heat = self.query_one(HeatMap)
        if self._attention is None and self._look.reading is None and heat.cell is None:
            heat.cell = self._suggested = attention.copying_head
        self._attention = attention
        self._arrange()
        self._draw()

    def _draw(self) -> None:
        source, attention = self._source, self._chosen
        if attention is None or attention.position != source:
            return
        heat, text = self.query_one(HeatMap), self.query_one(TokenText)
        texts, weights = attention.texts, attention.weights
        text.paint([attended(share) for share in attention.shares], self._held)
        is_pinned = self._held is not None
        target = text.cursor if is_pinned and text.cursor <= source else attention.target
        heat.show(Map(attention.on(target)))
        most = Content.assemble(
            quoted(texts[source]), " pinned" if is_pinned else "", (" attends to", "dim")
        )
        for position in attention.order[:4]:
            weight = f" {percent(weights[position]).strip()}"
            longer = Content.assemble(most, "  ", quoted(texts[position]), weight)
            if longer.cell_length > self.size.width:
                break
            most = longer
        detail = Content.assemble(
            (f"{attention.reading}\n{attention.sums}\n", "dim"),
            most, ("\n" + attention.chosen, "$text-accent"),
            (f": {percent(weights[target]).strip()} on ", "dim"), quoted(texts[target]),
            ("; map: % of each head", "dim"),
        )  # fmt: skip
        self.query_one("#attention-detail", Static).update(detail)
        lines = line_rows(Lines(texts, weights, source=source), _MOST_LINES)
        self.query_one("#attention-lines-text", Static).update(Group(*lines))
