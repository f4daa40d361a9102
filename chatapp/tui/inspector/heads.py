"""The tab of the inspector that shows what the heads of the model do.

Invariant: the scores belong to the model, whatever text is looked at, and are computed once. They
are computed a text at a time, so that replies and other tabs come in between.
"""

from collections.abc import Callable, Generator, Sequence
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
from chatapp.common.shading import cell_number, percent
from chatapp.lab.findings import Finding
from chatapp.tui.conversation.conversation import Conversation
from chatapp.tui.inspector.close_up import CloserView
from chatapp.tui.inspector.heat_map import HeatMap
from chatapp.tui.inspector.token_text import quoted, weight_legend
from chatapp.tui.inspector.view import Compute, Look

_Steps = Generator[tuple[int, int], None, Any]


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
        super().__init__(id=id)
        self._conversation = conversation
        self._model: ref[Any] | None = None
        self._scores: Any = None
        self._strongest: Any = None
        self._measure = "induction"
        self._steps: _Steps | None = None

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

    def findings(self) -> Sequence[Finding]:
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
        from chatapp.lab.heads import scoring_steps

        self._model, self._scores, self._strongest = ref(model), None, None
        heat = self.query_one(HeadMap)
        heat.cell = None
        heat.show([])
        self._texts(Content())
        self._go_on(scoring_steps(model), "Measuring heads", self._scored)

    def _go_on(self, steps: _Steps, words: str, show: Callable[[Any], None]) -> None:
        """Do one step after the other, each as a computation of its own."""
        self._steps = steps

        def work() -> tuple[bool, Any]:
            try:
                return False, next(steps)
            except StopIteration as end:
                return True, end.value

        def step(answer: tuple[bool, Any]) -> None:
            if self._steps is not steps:
                return
            is_over, value = answer
            if is_over:
                self._steps = None
                show(value)
                return
            done, total = value
            self._detail(Content.styled(f"{words}: {done} of {total} … Esc stops", "dim"))
            self.post_message(Compute(work, step, self._failed, "heads"))

        self.post_message(Compute(work, step, self._failed, "heads"))

    def on_unmount(self) -> None:
        self._steps = None  # which holds the model

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self._steps is not None if action == "stop" else True

    def action_stop(self) -> None:
        self._steps = None
        if self._scores is None:
            self._model = None
            self._detail(Content.styled("Stopped. Choose the tab again to measure heads.", "dim"))
        else:
            self._draw()

    def _failed(self, reason: str) -> None:
        self._steps = None
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
        from chatapp.lab.heads import MEASURES

        names = list(MEASURES)
        self._measure = names[(names.index(self._measure) + step) % len(names)]
        if self._scores is not None:
            self._draw()

    @on(HeatMap.Chosen)
    def _draw(self) -> None:
        from dataclasses import replace

        from chatapp.lab.heads import MEASURES

        if self._scores is None or self._steps is not None:
            return
        scores = self._scores = replace(self._scores, sorted_by=self._measure)
        heat, measure = self.query_one(HeadMap), MEASURES[self._measure]
        values = scores.values[self._measure]
        largest = max(1.0, float(values.max()))
        heat.show((values / largest).clip(0, 1).tolist())
        words = f"{scores.sentence}: {measure.formula}"
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
        from chatapp.lab.figures.console import drawn_blocks
        from chatapp.lab.figures.of_parts import heads_table

        table = heads_table(self._scores)
        width = max(20, self.query_one("#heads-scroll").size.width - 1)
        self.query_one("#heads-texts", Static).update(Group(*drawn_blocks([table], width)))

    def action_texts(self) -> None:
        cell = self.query_one(HeadMap).cell
        model = None if self._model is None else self._model()
        if cell is None or model is None or self._scores is None:
            return
        from chatapp.lab.head_texts import strongest_steps

        self._go_on(strongest_steps(model, *cell), "Reading texts", self._show_texts)

    def _show_texts(self, texts: Any) -> None:
        self._strongest = texts
        self._draw()
        lines = [Content.styled(texts.sentence, "dim")]
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
