"""The tab of the inspector that shows each token with what else might have come.

Keep: only a token of a reply can be replaced; what the user wrote was not generated.
"""

from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import OptionList, Static

from chatapp.foreign import printable
from chatapp.shading import bar, percent
from chatapp.tui.inspector.legend import likelihood_legend
from chatapp.tui.inspector.look import Look
from chatapp.tui.inspector.token_text import LONGEST, TokenText, padded, quoted, surprise
from chatapp.tui.inspector.view import Branch, View
from chatapp.tui.options import MarkedOptions

if TYPE_CHECKING:
    from chatapp.lab.predictions import Candidate


class TokensView(View):
    """Token boundaries and ids, how probable each was, and what else might have come.

    At first the reply's first token is chosen.
    """

    hint = "← → choose a token · Tab, then Enter: put another in its place"

    _look: Look | None = None

    def legend(self) -> Content:
        return likelihood_legend(self.app.native_ansi_color)

    def compose(self) -> ComposeResult:
        yield TokenText(id="tokens-text")
        yield Static(id="tokens-detail", markup=False)
        yield MarkedOptions(id="tokens-alternatives")

    def show(self, look: Look) -> None:
        self._look = look
        text = self.query_one(TokenText)
        text.show(look.texts, min(look.start, len(look.texts) - 1))
        # What a user wrote was not generated; it is shaded only where there is nothing else.
        first = look.start if look.start < len(look.ids) else 1
        predictions = [look.prediction_of(position) for position in range(len(look.ids))]
        text.paint(
            [
                surprise(prediction.actual.probability)
                if prediction is not None and prediction.actual is not None and position >= first
                else None
                for position, prediction in enumerate(predictions)
            ]
        )
        self._choose()

    def on_resize(self) -> None:
        if self._look is not None:
            self._choose()

    @on(TokenText.Moved)
    def _choose(self) -> None:
        look, position = self._look, self.query_one(TokenText).cursor
        if look is None:
            return
        prediction = look.prediction_of(position)
        line = Content.assemble(
            ("token ", "dim"), f"{position} ", quoted(look.texts[position]),
            (" id ", "dim"), f"{look.ids[position]}",
        )  # fmt: skip
        lines: list[tuple[str, Content]] = []
        if prediction is None or prediction.actual is None:
            words = look.reason or "Nothing comes before the first token, so nothing predicts it."
            line += Content.styled(f"\n{printable(words)}", "dim")
        else:
            actual, entropy = prediction.actual, prediction.entropy
            line += Content.assemble(("  p ", "dim"), percent(actual.probability).strip())
            if actual.rank is not None:
                line += Content.assemble(("  rank ", "dim"), f"{actual.rank:,}")
            if entropy is not None:
                line += Content.assemble(("  entropy ", "dim"), f"{entropy:.2f} bits")
            for candidate in prediction.candidates:
                came = candidate.id == prediction.actual.id
                line_id = f"{position} {candidate.id}"
                lines.append((line_id, candidate_line(candidate, came, self.size.width)))
        self.query_one(MarkedOptions).show(lines)
        self.query_one("#tokens-detail", Static).update(line)

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        look = self._look
        assert look is not None
        position, id = map(int, str(event.option_id).split())
        if look.message is None or position < look.start:
            self.notify("Only a token of a reply can be replaced.", markup=False)
        elif id == look.ids[position]:
            self.notify("The reply has this token already.", markup=False)
        else:
            begin = (*look.ids[look.start : position], id)
            self.post_message(Branch(look.message.id, begin))


def candidate_line(candidate: "Candidate", came: bool, width: int) -> Content:
    """An alternative with its rank, text, probability and a bar."""
    size = max(0, width - LONGEST - 18)
    return Content.assemble(
        f"{candidate.rank:>2} {'●' if came else ' '} ", padded(candidate.text),
        f" {percent(candidate.probability)} {bar(candidate.probability, size)}",
    )  # fmt: skip
