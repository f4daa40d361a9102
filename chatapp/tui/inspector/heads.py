"""The tab of the inspector that shows what the heads of the model do.

Invariant: the scores belong to the model, whatever text is looked at, and are computed once.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar
from weakref import ref

from rich.console import Group
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from chatapp.lab.drawing.blocks import Block, Map
from chatapp.lab.drawing.console import drawn, drawn_blocks
from chatapp.lab.view import View
from chatapp.lab.views.head_views import (
    MEASURES,
    HeadScores,
    HeadTexts,
    score_heads,
    strongest_texts,
)
from chatapp.tui.inspector.close_up import CloserView
from chatapp.tui.inspector.heat_map import HeatMap
from chatapp.tui.inspector.token_text import weight_legend
from chatapp.tui.inspector.view import Look

_SOURCE_FROM = 70
"""Columns from which on the source of a measure has room; F1 shows it, too."""


class HeadsView(CloserView):
    """Each head's score by one measure, and the texts where the chosen head is strongest."""

    BINDING_GROUP_TITLE = "Inspector: heads"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "measure(1)", "Next measure", show=False),
        Binding("M", "measure(-1)", "Previous measure", show=False),
        Binding("enter", "texts", "The texts where this head is strongest", show=False),
        Binding("escape", "stop", "Stop measuring", show=False),
    ]
    DEFAULT_CSS = """
    HeadsView #heads-detail { height: auto; max-height: 7; }
    Inspector.-low #heads-detail { max-height: 5; }
    HeadsView HeatMap { height: 1fr; }
    HeadsView #heads-scroll { height: 1fr; border-top: solid $border-blurred; }
    """
    formula = HeadScores.formula
    hint = "arrows: choose a head · m: another measure · Enter: texts where it is strongest"

    _model: "ref[Any] | None" = None
    _scores: HeadScores | None = None
    _strongest: HeadTexts | None = None
    _measure = "induction"

    def legend(self) -> Content:
        letters = " · I induction, P previous, D duplicate"
        return weight_legend(self.app.native_ansi_color, "score") + Content(letters)

    def compose(self) -> ComposeResult:
        yield Static(id="heads-detail", markup=False)
        yield HeatMap()
        with VerticalScroll(can_focus=True, id="heads-scroll"):
            yield Static(id="heads-texts", markup=False)

    @property
    def cell(self) -> tuple[int, int] | None:
        return self.query_one(HeatMap).cell

    def views(self) -> Sequence[View]:
        return [it for it in (self._scores, self._strongest) if it is not None]

    def show(self, look: Look) -> None:
        self._look = look
        if look.model is None:
            self.failed(look.reason)
            return
        session = self._conversation.session
        model = None if session is None else session.model
        is_known = self._model is not None and self._model() is model
        if model is None or (is_known and self._scores is not None):
            return
        self._model, self._scores, self._strongest = ref(model), None, None
        heat = self.query_one(HeatMap)
        heat.cell = None
        heat.show(Map([]))
        self.query_one("#heads-texts", Static).update("")
        work = lambda tell: score_heads(model, progress=tell)  # noqa: E731
        self.measure("Measuring heads", work, self._scored)

    def _scored(self, scores: HeadScores) -> None:
        self._scores = scores
        self.query_one(HeatMap).cell = scores.order[0]
        self._draw()

    def action_measure(self, step: int) -> None:
        self._strongest = None
        names = list(MEASURES)
        self._measure = names[(names.index(self._measure) + step) % len(names)]
        self._draw()

    @on(HeatMap.Chosen)
    def _draw(self) -> None:
        if self._scores is None or self._wanted is not None:
            return
        scores = self._scores = replace(self._scores, sorted_by=self._measure)
        heat, measure, grid = self.query_one(HeatMap), MEASURES[self._measure], scores.map(True)
        heat.show(grid)
        words = f"{scores.reading}: {measure.formula}"
        if self.size.width >= _SOURCE_FROM:
            words += f" ({measure.source})"
        lines = [Content.styled(words, "dim")]
        if grid.scale > 1:
            lines.append(Content.styled(f"the map: percent of {grid.scale:.1f}", "dim"))
        if heat.cell is not None:
            layer, head = heat.cell
            called = scores.called(layer, head)
            others = ", ".join(
                f"{name} {value[layer, head]:.2f}" for name, value in scores.values.items()
            )
            name = f"{layer}.{head}" + (f" {called}" if called else "")
            lines.append(Content.assemble((name, "bold $text-accent"), f": {others}"))
        self.query_one("#heads-detail", Static).update(Content("\n").join(lines))
        self._list()

    def on_resize(self) -> None:
        self._list()

    def _list(self) -> None:
        """All heads by the measure, or the texts of one."""
        width = max(20, self.query_one("#heads-scroll").size.width - 1)
        if self._strongest is not None:
            rows = drawn([self._strongest], width)
        elif self._scores is not None:
            blocks: list[Block] = [self._scores.table()]
            rows = drawn_blocks(blocks, width)
        else:
            return
        self.query_one("#heads-texts", Static).update(Group(*rows))

    def action_texts(self) -> None:
        model = None if self._model is None else self._model()
        if self.cell is None or model is None or self._scores is None:
            return
        layer, head = self.cell
        work = lambda tell: strongest_texts(model, layer, head, progress=tell)  # noqa: E731
        self.measure("Reading texts", work, self._show_texts)

    def _show_texts(self, texts: HeadTexts) -> None:
        self._strongest = texts
        self._draw()
