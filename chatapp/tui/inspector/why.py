"""The tab of the inspector that shows which parts of the model wrote a token."""

from collections.abc import Sequence
from typing import ClassVar

from rich.console import Group
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from chatapp.lab.drawing.blocks import Map
from chatapp.lab.drawing.console import drawn_blocks
from chatapp.lab.view import View
from chatapp.lab.views.part_views import Why, question_at
from chatapp.tui.inspector.close_up import CloserView
from chatapp.tui.inspector.heat_map import HeatMap
from chatapp.tui.inspector.token_text import TokenText
from chatapp.tui.inspector.view import Look, SwitchPart


class WhyView(CloserView):
    """The share of each part in a token's logit against the runner-up's, and its total effect."""

    BINDING_GROUP_TITLE = "Inspector: why"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "switch", "Switch this head off in the chat, or on", show=False),
    ]
    DEFAULT_CSS = """
    WhyView #why-detail { height: auto; max-height: 5; }
    WhyView TokenText, WhyView HeatMap { border-top: solid $border-blurred; }
    WhyView HeatMap { height: 1fr; }
    WhyView #why-scroll { height: 1fr; border-top: solid $border-blurred; }
    """
    hint = "← → choose a token · Tab, then arrows: choose a head · Space switches it off or on"
    formula = Why.formula

    _why: Why | None = None
    _note = ""

    def legend(self) -> Content:
        return Content("orange and + for the token · blue and - against it")

    def compose(self) -> ComposeResult:
        yield Static(id="why-detail", markup=False)
        yield TokenText(id="why-text")
        yield HeatMap()
        with VerticalScroll(can_focus=True, id="why-scroll"):
            yield Static(id="why-parts", markup=False)

    def show(self, look: Look) -> None:
        self._look = look
        text = self.query_one(TokenText)
        text.show(look.tokens.texts, max(0, min(look.start, len(look.tokens.texts)) - 1))
        self._choose()

    @property
    def cell(self) -> tuple[int, int] | None:
        return self.query_one(HeatMap).cell

    def views(self) -> Sequence[View]:
        return [self._why] if self._why is not None else []

    def on_unmount(self) -> None:
        self._why = None  # which holds the model

    @on(TokenText.Moved)
    def _choose(self) -> None:
        session, self._why = self._conversation.session, None
        if self._look.trace is None or session is None:
            self.failed(self._look.reason)
            return
        subject = self._look.subject(session.model, self.query_one(TokenText).cursor)
        options = Why.here(subject)
        work = lambda tell: Why.of(question_at(subject, options), effects=False)  # noqa: E731
        self.measure("Computing the shares", work, self._computed)

    def failed(self, reason: str) -> None:
        self.say(reason)
        self.query_one(HeatMap).show(Map([]))
        self.query_one("#why-parts", Static).update("")

    def _computed(self, why: Why) -> None:
        self._why, heat = why, self.query_one(HeatMap)
        if heat.cell is None:  # Space works at once on the head with the largest share
            best = max(why.order, key=lambda part: abs(part.share) * part.name[-1].isdigit())
            layer, _, head = best.name.partition(".")
            heat.cell = int(layer), int(head)
        work = lambda tell: Why.of(why.question, progress=tell)  # noqa: E731
        self.measure("Measuring what is lost without each part", work, self._measured, self._tell)

    def _tell(self, words: str) -> None:
        self._note = words
        self._draw()

    def _measured(self, why: Why) -> None:
        self._why, self._note = why, ""
        self._draw()

    def action_switch(self) -> None:
        if self.cell is not None:
            self.post_message(SwitchPart("{}.{}".format(*self.cell)))

    @on(HeatMap.Chosen)
    def _draw(self) -> None:
        why = self._why
        if why is None:
            return
        heat = self.query_one(HeatMap)
        heat.show(Map(why.by_head, is_signed=True))
        lines = [Content.styled(why.reading, "dim")]
        if heat.cell is not None:
            name = "{}.{}".format(*heat.cell)
            part = next(part for part in why.components if part.name == name)
            total = "" if part.effect is None else f", total effect {part.effect:+.3f}"
            words = f": direct {part.share:+.3f}{total}"
            lines.append(Content.assemble((name, "bold $text-accent"), words))
        if self._note:
            lines.append(Content.styled(self._note, "dim"))
        self.query_one("#why-detail", Static).update(Content("\n").join(lines))
        self._list_parts()

    def on_resize(self) -> None:
        self._list_parts()

    def _list_parts(self) -> None:
        """All parts, the largest first."""
        if self._why is not None:
            width = max(20, self.query_one("#why-scroll").size.width - 1)
            rows = drawn_blocks([self._why.table()], width)
            self.query_one("#why-parts", Static).update(Group(*rows))
