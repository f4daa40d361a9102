"""The tab of the inspector that shows what the heads of the model do.

Invariant: the scores belong to the model, whatever text is looked at, and are computed once. They
end as soon as a reply is to be generated.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from weakref import ref

from rich.console import Group
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from chatapp.common.foreign import printable
from chatapp.common.progress import Progress
from chatapp.common.shading import cell_number, percent
from chatapp.lab.view import View
from chatapp.lab.views.head_views import MEASURES, score_heads, strongest_texts
from chatapp.tui.conversation.conversation import Conversation
from chatapp.tui.inspector.close_up import CloserView
from chatapp.tui.inspector.heat_map import HeatMap
from chatapp.tui.inspector.token_text import quoted, weight_legend
from chatapp.tui.inspector.view import Compute, Left, Look, Measuring

_SOURCE_FROM = 70
"""Columns from which on the source of a measure has room; F1 shows it, too."""


class HeadMap(HeatMap):
    """A map of scores that shows what a head is called, where there is room."""

    called: Callable[[int, int], str] = staticmethod(lambda layer, head: "")

    def words(self, layer: int, head: int, value: float, columns: int) -> str:
        letter = self.called(layer, head)[:1].upper()
        if columns < 4 or not letter:
            return super().words(layer, head, value, columns)
        return f"{letter}{cell_number(value, 2 + (columns > 4))}".rjust(columns)


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
    HeadsView HeadMap { height: 1fr; }
    HeadsView #heads-scroll { height: 1fr; border-top: solid $border-blurred; }
    """
    formula = (
        "Scores of random tokens that come twice: previous = mean A[i, i-1], duplicate = mean "
        "A[i, i-s], induction = mean A[i, i-s+1] s the length of a half; Olsson et al. 2022, "
        "arXiv 2209.11895. copying = sum Re λ / sum |λ| of W_U W_O W_V W_E; Elhage et al. 2021."
    )
    hint = "arrows: choose a head · m: another measure · Enter: texts where it is strongest"

    def __init__(self, conversation: Conversation, *, id: str | None = None) -> None:
        super().__init__(conversation, id=id)
        self._model: ref[Any] | None = None
        self._scores: Any = None
        self._strongest: Any = None
        self._measure = "induction"
        self._wanted: object | None = None

    def legend(self) -> Content:
        letters = " · I induction, P previous, D duplicate"
        return weight_legend(self.app.native_ansi_color, "score") + Content(letters)

    def compose(self) -> ComposeResult:
        yield Static(id="heads-detail", markup=False)
        yield HeadMap()
        with VerticalScroll(can_focus=True, id="heads-scroll"):
            yield Static(id="heads-texts", markup=False)

    @property
    def cell(self) -> tuple[int, int] | None:
        return self.query_one(HeadMap).cell

    def findings(self) -> Sequence[View]:
        return [it for it in (self._scores, self._strongest) if it is not None]

    def show(self, look: Look) -> None:
        self._look = look
        if look.model is None:
            self._failed(look.reason)
            return
        session = self._conversation.session
        model = None if session is None else session.model
        if model is None or (self._model is not None and self._model() is model):
            return
        self._model, self._scores, self._strongest = ref(model), None, None
        heat = self.query_one(HeadMap)
        heat.cell = None
        heat.show([])
        self._texts(Content())
        self._measure_on_thread(
            lambda tell: score_heads(model, progress=tell), "Measuring heads", self._scored
        )

    def _measure_on_thread(
        self, work: Callable[[Progress], Any], words: str, show: Callable[[Any], None]
    ) -> None:
        """Measure until it is stopped, or a reply is to be generated."""
        wanted = self._wanted = object()

        def tell(done: int, total: int) -> None:
            if self._wanted is not wanted or self._conversation.turn is not None:
                raise Left
            self.post_message(Measuring(done, total))

        def compute() -> Any:
            try:
                return work(tell)
            except Left:
                return None

        def arrived(result: Any) -> None:
            if self._wanted is not wanted:
                return
            self._wanted = None
            if result is None:
                self._failed("Stopped for a reply.")
            else:
                show(result)

        self._words = words
        self._detail(Content.styled(f"{words} …", "dim"))
        self.post_message(Compute(compute, arrived, self._failed, "heads"))

    @on(Measuring)
    def _show_measuring(self, event: Measuring) -> None:
        event.stop()
        if self._wanted is not None:
            words = f"{self._words}: {event.done} of {event.total} … Esc stops"
            self._detail(Content.styled(words, "dim"))

    def on_unmount(self) -> None:
        self._wanted = None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self._wanted is not None if action == "stop" else True

    def action_stop(self) -> None:
        self._wanted = None
        if self._scores is None:
            self._model = None
            self._detail(Content.styled("Stopped. Choose the tab again to measure heads.", "dim"))
        else:
            self._draw()

    def _failed(self, reason: str) -> None:
        self._wanted = None
        self._detail(Content.styled(printable(reason), "dim"))

    def _detail(self, words: Content) -> None:
        self.query_one("#heads-detail", Static).update(words)

    def _texts(self, words: Content) -> None:
        self.query_one("#heads-texts", Static).update(words)

    def _scored(self, scores: Any) -> None:
        self._scores = scores
        heat = self.query_one(HeadMap)
        heat.called = scores.called
        heat.cell = scores.order[0]
        self._draw()

    def action_measure(self, step: int) -> None:
        self._strongest = None
        names = list(MEASURES)
        self._measure = names[(names.index(self._measure) + step) % len(names)]
        if self._scores is not None:
            self._draw()

    @on(HeatMap.Chosen)
    def _draw(self) -> None:
        from dataclasses import replace

        if self._scores is None or self._wanted is not None:
            return
        scores = self._scores = replace(self._scores, sorted_by=self._measure)
        heat, measure = self.query_one(HeadMap), MEASURES[self._measure]
        values = scores.values[self._measure]
        largest = max(1.0, float(values.max()))
        heat.show((values / largest).clip(0, 1).tolist())
        words = f"{scores.reading}: {measure.formula}"
        if self.size.width >= _SOURCE_FROM:
            words += f" ({measure.source})"
        lines = [Content.styled(words, "dim")]
        if largest > 1:
            lines.append(Content.styled(f"the map: percent of {largest:.1f}", "dim"))
        if heat.cell is not None:
            layer, head = heat.cell
            called = scores.called(layer, head)
            others = ", ".join(
                f"{name} {value[layer, head]:.2f}" for name, value in scores.values.items()
            )
            name = f"{layer}.{head}" + (f" {called}" if called else "")
            lines.append(Content.assemble((name, "bold $text-accent"), f": {others}"))
        self._detail(Content("\n").join(lines))
        if self._strongest is None:
            self._list_heads()

    def on_resize(self) -> None:
        if self._scores is not None and self._strongest is None:
            self._list_heads()

    def _list_heads(self) -> None:
        """All heads by the measure, until the texts of one are shown."""
        from chatapp.lab.drawing.console import drawn_blocks

        table = self._scores.table()
        width = max(20, self.query_one("#heads-scroll").size.width - 1)
        self.query_one("#heads-texts", Static).update(Group(*drawn_blocks([table], width)))

    def action_texts(self) -> None:
        cell = self.query_one(HeadMap).cell
        model = None if self._model is None else self._model()
        if cell is None or model is None or self._scores is None:
            return
        self._measure_on_thread(
            lambda tell: strongest_texts(model, *cell, progress=tell),
            "Reading texts",
            self._show_texts,
        )

    def _show_texts(self, texts: Any) -> None:
        self._strongest = texts
        self._draw()
        lines = [Content.styled(texts.reading, "dim")]
        for row in texts.rows:
            links = Content("   ").join(
                Content.assemble(
                    quoted(row.texts[link.source]), (" attends to ", "dim"),
                    quoted(row.texts[link.target]), (f" {percent(link.weight).strip()}", "dim"),
                )
                for link in row.links
            )  # fmt: skip
            text = printable(" ".join("".join(row.texts).split()))
            lines.append(Content.assemble(f"{row.strength:.2f}  ", links, ("\n" + text, "dim")))
        self._texts(Content("\n").join(lines))
