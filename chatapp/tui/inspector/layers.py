"""The tab of the inspector that shows what each layer would predict.

Keep: the table belongs to the token chosen in the text above it.
"""

from functools import partial
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from chatapp.foreign import printable
from chatapp.shading import percent
from chatapp.tui.inspector.look import Look
from chatapp.tui.inspector.token_text import TokenText, quoted
from chatapp.tui.inspector.view import Compute, View

if TYPE_CHECKING:
    from chatapp.lab.predictions import Prediction


class LayersView(View):
    """What each layer would predict after a token, at first the one before the reply."""

    hint = "← → choose a token · Tab: scroll the layers"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._guesses: list[Prediction] = []

    def legend(self) -> Content:
        words = "the token that followed", " · bits: how unsure the layer is"
        return Content.assemble((words[0], "bold $text-success"), words[1])

    def compose(self) -> ComposeResult:
        yield TokenText(id="layers-text")
        yield Static(id="layers-detail", markup=False)
        with VerticalScroll(can_focus=True, id="layers-scroll"):
            yield Static(id="layers-table", markup=False)

    def show(self, look: Look) -> None:
        self._look = look
        self._guesses = []
        text = self.query_one(TokenText)
        text.show(look.texts, min(look.start, len(look.texts)) - 1)
        self._choose()

    @on(TokenText.Moved)
    def _choose(self) -> None:
        trace, position = self._look.trace, self.query_one(TokenText).cursor
        if trace is None:
            self._failed(self._look.reason)
        else:
            work = partial(trace.lens, position)
            self.post_message(Compute(work, self._computed, self._failed, "layers"))

    def _failed(self, reason: str) -> None:
        self._show_detail(Content.styled(printable(reason), "dim"))
        self.query_one("#layers-table", Static).update("")

    def _show_detail(self, words: Content) -> None:
        self.query_one("#layers-detail", Static).update(words)

    def on_resize(self) -> None:
        if self._guesses:
            self._computed(self._guesses)

    def _computed(self, guesses: "list[Prediction]") -> None:
        self._guesses = guesses
        look, position = self._look, self.query_one(TokenText).cursor
        actual = guesses[0].actual
        words = Content.assemble(
            ("each layer's predictions after ", "dim"), quoted(look.texts[position])
        )
        if actual is not None:
            words += Content.assemble(("; ", "dim"), quoted(actual.text), (" followed", "dim"))
        self._show_detail(words)
        width = self.size.width - 2
        header = " layer  bits" + ("    rank" if actual else "") + "  predictions"
        rows = [Content.styled(header, "dim")]
        for layer in reversed(range(len(guesses))):
            guess = guesses[layer]
            line = Content(f"{layer:>6} {guess.entropy:>5.1f}")
            if guess.actual is not None:
                line += Content(f" {guess.actual.rank:>7,}")
            line += Content(" ")
            for candidate in guess.candidates:
                right = actual is not None and candidate.id == actual.id
                piece = quoted(candidate.text).stylize("bold $text-success" if right else "")
                more = Content.assemble(
                    " ", piece, (f" {percent(candidate.probability).strip()}", "dim")
                )
                if line.cell_length + more.cell_length > width:
                    break
                line += more
            rows.append(line)
        self.query_one("#layers-table", Static).update(Content("\n").join(rows))
