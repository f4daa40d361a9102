"""The tab of the inspector that shows which parts of the model wrote a token.

Invariant: the sum of the shares and the difference of the logits are both shown. Measuring what is
lost without each part ends as soon as a reply is to be generated or another token is chosen.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rich.color import Color as RichColor
from rich.style import Style
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from chatapp.common.foreign import printable
from chatapp.common.shading import ink_on, signed_color, signed_number
from chatapp.lab.view import View
from chatapp.tui.conversation.conversation import Conversation
from chatapp.tui.inspector.close_up import CloserView
from chatapp.tui.inspector.heat_map import HeatMap
from chatapp.tui.inspector.token_text import TokenText
from chatapp.tui.inspector.view import Compute, Left, Look, Measuring, SwitchPart

if TYPE_CHECKING:
    from chatapp.lab.views.part_views import Why

_HEADER = "part        direct   total   "


class ShareMap(HeatMap):
    """A map of signed shares of logits."""

    largest = 0.0

    def show(self, cells: list[list[float]]) -> None:
        """Show other shares (layers, heads)."""
        self.largest = max((abs(value) for row in cells for value in row), default=0.0)
        super().show(cells)

    def words(self, layer: int, head: int, value: float, columns: int) -> str:
        return signed_number(value, self.largest, columns)

    def _style(self, weight: float, chosen: bool) -> Style:
        share = weight / self.largest if self.largest else 0.0
        if chosen:
            return super()._style(weight, chosen)
        if self.app.native_ansi_color:
            return Style(dim=abs(share) < 0.2, bold=abs(share) > 0.5)
        color = signed_color(share)
        return Style(color=RichColor.from_rgb(*ink_on(color)), bgcolor=RichColor.from_rgb(*color))


class WhyView(CloserView):
    """The share of each part in a token's logit against the runner-up's, and its total effect."""

    BINDING_GROUP_TITLE = "Inspector: why"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "switch", "Switch this head off in the chat, or on", show=False),
    ]
    DEFAULT_CSS = """
    WhyView #why-detail { height: auto; max-height: 5; }
    WhyView TokenText, WhyView ShareMap { border-top: solid $border-blurred; }
    WhyView ShareMap { height: 1fr; }
    WhyView #why-scroll { height: 1fr; border-top: solid $border-blurred; }
    """
    hint = "← → choose a token · Tab, then arrows: choose a head · Space switches it off or on"
    formula = (
        "share = (part, with the final norm's scale) · (W_U[token] - W_U[other]); Elhage et al. "
        "2021, transformer-circuits.pub. total = the difference lost with the part replaced by "
        "zeros; Heimersheim and Nanda 2024, arXiv 2404.15255."
    )

    def __init__(self, conversation: Conversation, *, id: str | None = None) -> None:
        super().__init__(conversation, id=id)
        self._why: Why | None = None
        self._wanted: object | None = None
        self._note = ""

    def legend(self) -> Content:
        return Content("orange and + for the token · blue and - against it")

    def compose(self) -> ComposeResult:
        yield Static(id="why-detail", markup=False)
        yield TokenText(id="why-text")
        yield ShareMap()
        with VerticalScroll(can_focus=True, id="why-scroll"):
            yield Static(id="why-parts", markup=False)

    def show(self, look: Look) -> None:
        self._look = look
        self._why = None
        text = self.query_one(TokenText)
        text.show(look.tokens.texts, max(0, min(look.start, len(look.tokens.texts)) - 1))
        self._choose()

    @property
    def cell(self) -> tuple[int, int] | None:
        return self.query_one(ShareMap).cell

    def findings(self) -> Sequence[View]:
        return [self._why] if self._why is not None else []

    def on_unmount(self) -> None:
        self._why = self._wanted = None  # which hold the model

    @on(TokenText.Moved)
    def _choose(self) -> None:
        look, position = self._look, self.query_one(TokenText).cursor
        session = self._conversation.session
        if look.trace is None or session is None:
            self._failed(look.reason)
            return
        ids = look.tokens.ids
        before, after = ids[: position + 1], ids[position + 1 :]
        wanted = self._wanted = object()
        model, following = session.model, next(iter(after), None)

        def work() -> Any:
            from chatapp.lab.views.part_views import Why, ask

            question = ask(model, before, following, None, look.changes)
            return Why.of(question, effects=False)

        self.post_message(Compute(work, partial(self._computed, wanted), self._failed, "why"))

    def _failed(self, reason: str) -> None:
        self._detail(Content.styled(printable(reason), "dim"))
        self.query_one(ShareMap).show([])
        self.query_one("#why-parts", Static).update("")

    def _detail(self, words: Content) -> None:
        self.query_one("#why-detail", Static).update(words)

    def _computed(self, wanted: object, why: "Why") -> None:
        if self._wanted is not wanted:
            return
        self._why, self._note = why, "measuring what is lost without each part …"
        self._draw()

        def tell(done: int, total: int) -> None:
            if self._wanted is not wanted or self._conversation.turn is not None:
                raise Left
            self.post_message(Measuring(done, total))

        def work() -> "Why | None":
            from chatapp.lab.views.part_views import Why

            try:
                return Why.of(why.question, progress=tell)
            except Left:
                return None

        measured = partial(self._measured, wanted)
        self.post_message(Compute(work, measured, self._failed, "why effects"))

    @on(Measuring)
    def _show_measuring(self, event: Measuring) -> None:
        event.stop()
        if self._why is not None and self._note:
            self._note = f"without each part: {event.done} of {event.total} layers …"
            self._draw()

    def _measured(self, wanted: object, why: "Why | None") -> None:
        if self._wanted is wanted:
            self._note = "" if why is not None else "stopped for a reply"
            self._why = why or self._why
            self._draw()

    def action_switch(self) -> None:
        cell = self.query_one(ShareMap).cell
        if cell is not None:
            self.post_message(SwitchPart("{}.{}".format(*cell)))

    @on(HeatMap.Chosen)
    def _draw(self) -> None:
        why = self._why
        if why is None:
            return
        heat, shares = self.query_one(ShareMap), why.by_head
        if heat.cell and not (heat.cell[0] < len(shares) and heat.cell[1] < len(shares[0])):
            heat.cell = None  # another model has fewer
        heat.show(shares)
        lines = [Content.styled(why.reading, "dim")]
        by_name = {part.name: part for part in why.components}
        if heat.cell is not None:
            part = by_name["{}.{}".format(*heat.cell)]
            total = "" if part.effect is None else f", total effect {part.effect:+.3f}"
            words = f": direct {part.share:+.3f}{total}"
            lines.append(Content.assemble((part.name, "bold $text-accent"), words))
        if self._note:
            lines.append(Content.styled(self._note, "dim"))
        self._detail(Content("\n").join(lines))
        self._list_parts(why)

    def on_resize(self) -> None:
        if self._why is not None:
            self._list_parts(self._why)

    def _list_parts(self, why: "Why") -> None:
        """All parts, the largest first, in as many columns as there are."""
        pane = self.query_one("#why-scroll")
        columns = max(1, pane.size.width // len(_HEADER))
        most = max(pane.size.height - 1, -(-len(why.components) // columns))
        cells = []
        for part in why.order:
            effect = "" if part.effect is None else f"{part.effect:+.3f}"
            cells.append(f"{part.name:<10}{part.share:+8.3f} {effect:>7}   ")
        used = -(-len(cells) // most)
        rows = [Content.styled(_HEADER * used, "dim")]
        rows += [Content("".join(cells[row::most])) for row in range(min(most, len(cells)))]
        self.query_one("#why-parts", Static).update(Content("\n").join(rows))
