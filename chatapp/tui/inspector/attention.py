"""The tab of the inspector that shows what a token attends to.

Keep: text and map show the weights of the same source token.
"""

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Static

from chatapp.foreign import printable
from chatapp.shading import percent
from chatapp.tui.inspector.heatmap import HeatMap
from chatapp.tui.inspector.legend import weight_legend
from chatapp.tui.inspector.look import Look
from chatapp.tui.inspector.token_text import TokenText, attended, quoted
from chatapp.tui.inspector.view import Compute, View

if TYPE_CHECKING:
    from numpy import float32
    from numpy.typing import NDArray

    from chatapp.lab.traces import Trace


class AttentionView(View):
    """What a token attends to, as shading over the text and as a map of all heads."""

    BINDING_GROUP_TITLE = "Inspector: attention"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "hold", "Pin the token, to choose what it attends to", show=False),
    ]
    hint = "← → choose a token · Enter pins it · Tab, then arrows: choose a head · a: all heads"

    def legend(self) -> Content:
        return weight_legend(self.app.native_ansi_color)

    def compose(self) -> ComposeResult:
        yield TokenText(id="attention-text")
        yield Static(id="attention-detail", markup=False)
        yield HeatMap()

    def show(self, look: Look) -> None:
        self._look = look
        self._held: int | None = None
        self._attention: tuple[int, NDArray[float32]] | None = None
        text = self.query_one(TokenText)
        text.show(look.texts, self._first_choice(look))
        self.query_one(HeatMap).display = True
        self._choose()

    def _first_choice(self, look: Look) -> int:
        """The last token, but in the example sentence the pronoun."""
        if not look.template and " he" in look.texts:
            return look.texts.index(" he")
        return len(look.texts) - 1

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
        elif self._attention is not None and self._attention[0] == source:
            self._draw()
        else:
            work = partial(_with_source, trace, source)
            self.post_message(Compute(work, self._computed, self._failed, "attention"))

    def _failed(self, reason: str) -> None:
        words = Content.styled(printable(reason), "dim")
        self.query_one("#attention-detail", Static).update(words)
        self.query_one(HeatMap).display = False

    def _computed(self, attention: "tuple[int, NDArray[float32]]") -> None:
        self._attention = attention
        self._draw()

    def _draw(self) -> None:
        if self._attention is None or self._attention[0] != self._source:
            return
        source, attention = self._attention
        heat, text = self.query_one(HeatMap), self.query_one(TokenText)
        cell = heat.cell
        weights: list[float] = (
            attention.mean(axis=(0, 1)) if cell is None else attention[cell[0], cell[1]]
        ).tolist()
        order = sorted(range(len(weights)), key=lambda position: -weights[position])
        # The first token takes what a head has no use for, and would outshine the others.
        brightest = max(weights[1:], default=0.0) or 1.0
        text.paint([attended(weight, brightest) for weight in weights], self._held)
        target = next((position for position in order if position not in (0, source)), order[0])
        if self._held is not None and text.cursor <= source:
            target = text.cursor
        heat.show(attention[:, :, target].tolist())
        texts = self._look.texts
        heads = (
            "average of all heads" if cell is None else f"layer {cell[0] + 1}, head {cell[1] + 1}"
        )
        most = Content(" ").join(
            Content.assemble(quoted(texts[position]), f" {percent(weights[position]).strip()} ")
            for position in order[:4]
        )
        detail = Content.assemble(
            quoted(texts[source]), " pinned" if self._held is not None else "",
            (" attends to ", "dim"), most, ("\n" + heads, "$text-accent"),
            (f": {percent(weights[target]).strip()} on ", "dim"), quoted(texts[target]),
            ("; the map: % of each head", "dim"),
        )  # fmt: skip
        self.query_one("#attention-detail", Static).update(detail)


def _with_source(trace: "Trace", source: int) -> "tuple[int, NDArray[float32]]":
    return source, trace.attention(source)
