"""The inspector's tabs on tokens, on layers and on the prompt."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import OptionList, Static

from chatapp.common.foreign import printable
from chatapp.common.shading import bar, percent
from chatapp.lab.drawing.blocks import Table
from chatapp.lab.drawing.console import drawn, drawn_blocks
from chatapp.lab.view import AtToken, View
from chatapp.lab.views.layer_views import Layers, Norms
from chatapp.lab.views.text_views import PromptText, Tokens
from chatapp.tui.inspector.token_choice import (
    LONGEST,
    TokenText,
    likelihood_legend,
    padded,
    quoted,
    surprise,
)
from chatapp.tui.inspector.view import Branch, CloserView, InspectorTab, Look
from chatapp.tui.widgets.dialog import MarkedOptions, Notice
from chatapp.tui.widgets.message import SPEAKERS
from chatapp.tui.widgets.rendered import colored, legend, one_line, shot_lines, source_lines

if TYPE_CHECKING:
    from chatapp.dialogue.reading import PromptReading
    from chatapp.engine.model import LanguageModel
    from chatapp.lab.predictions import Candidate


_FIRST = "Nothing comes before the first token, so nothing predicts it."
_ENCODED = "The encoder reads this token, and nothing predicts it."


class TokensView(InspectorTab):
    """Token boundaries and ids, their probabilities and alternatives.

    At first the reply's first token is chosen.
    """

    hint = "← → choose a token · Tab, Enter: put another in its place"
    DEFAULT_CSS = """
    TokensView #tokens-sentence { height: auto; max-height: 2; color: $text-muted; }
    TokensView TokenText { border-top: solid $border-blurred; }
    """
    formula = Tokens.formula

    def legend(self) -> Content:
        return likelihood_legend(self.app.native_ansi_color)

    def views(self) -> Sequence[View]:
        return [self._look.tokens] if self._look.tokens.ids else []

    def compose(self) -> ComposeResult:
        yield Static(id="tokens-sentence", markup=False)
        yield TokenText(id="tokens-text")
        yield Static(id="tokens-detail", markup=False)
        yield MarkedOptions(id="tokens-alternatives")

    def show(self, look: Look) -> None:
        self._look = look
        self.query_one("#tokens-sentence", Static).update(look.tokens.reading)
        text, size = self.query_one(TokenText), len(look.tokens.ids)
        text.show(look.tokens.texts, min(look.start, size - 1))
        # A user's text was not generated; it is shaded only if there is nothing else.
        first = look.start if look.start < size else 1
        actual = [look.tokens.actual(position) for position in range(first, size)]
        paints = [
            surprise(candidate.probability) if candidate is not None else None
            for candidate in actual
        ]
        text.paint([*[None] * first, *paints])
        self._choose()

    def on_resize(self) -> None:
        if self._look.tokens.ids:
            self._choose()

    @on(TokenText.Moved)
    def _choose(self) -> None:
        look, position = self._look, self.query_one(TokenText).cursor
        tokens = look.tokens
        expected, actual = tokens.expected[position], tokens.actual(position)
        line = Content.assemble(
            ("token ", "dim"), f"{position} ", quoted(tokens.texts[position]),
            (" id ", "dim"), f"{tokens.ids[position]}",
        )  # fmt: skip
        lines: list[tuple[str, Content]] = []
        if expected is None or actual is None:
            is_encoded = look.trace is not None and position < look.trace.encoded
            words = _ENCODED if is_encoded else look.reason or _FIRST
            line += Content.styled(f"\n{printable(words)}", "dim")
        else:
            line += Content.assemble(("  p ", "dim"), percent(actual.probability).strip())
            if actual.rank is not None:
                line += Content.assemble(("  rank ", "dim"), f"{actual.rank:,}")
            if expected.entropy is not None:
                line += Content.assemble(("  entropy ", "dim"), f"{expected.entropy:.2f} bits")
            if (limit := tokens.limits[position] if tokens.limits else None) is not None:
                preferred = quoted(expected.candidates[0].text).plain
                words = f"without it, {preferred} would be the likeliest"
                line += Content(f"\n{limit.words}; {words}")
            known = sum(candidate.probability for candidate in expected.candidates)
            line += Content.styled(
                f"\nthe {len(expected.candidates)} below add up to {percent(known).strip()}, "
                f"the rest of the vocabulary to {percent(max(0.0, 1 - known)).strip()}",
                "dim",
            )
            for candidate in expected.candidates:
                came = candidate.id == actual.id
                line_id = f"{position} {candidate.id}"
                lines.append((line_id, candidate_line(candidate, came, self.size.width)))
        self.query_one(MarkedOptions).show(lines)
        self.query_one("#tokens-detail", Static).update(line)

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        look = self._look
        position, id = map(int, str(event.option_id).split())
        if look.message is None or position < look.start:
            self.notify("Only a token of a reply can be replaced.", markup=False)
        elif id == look.tokens.ids[position]:
            self.notify("The reply has this token already.", markup=False)
        else:
            begin = (*look.tokens.ids[look.start : position], id)
            self.post_message(Branch(look.message.id, begin))


def candidate_line(candidate: "Candidate", came: bool, width: int) -> Content:
    """An alternative with its rank, text, probability and a bar."""
    size = max(0, width - LONGEST - 18)
    return Content.assemble(
        f"{candidate.rank:>2} {'●' if came else ' '} ", padded(candidate.text),
        f" {percent(candidate.probability)} {bar(candidate.probability, size)}",
    )  # fmt: skip


_CANDIDATES = 10
"""How many candidates of each layer are computed; as many are shown as have room."""


def _layers_and_norms(model: "LanguageModel", look: Look, position: int) -> list[View]:
    """For a thread. Only this program's decoders have norms to show."""
    from chatapp.engine.backends.local import LocalModel

    subject = look.subject(model, position)
    layers = Layers.of(subject.trace, position, _CANDIDATES)
    return [layers, Norms.look(subject, AtToken())] if isinstance(model, LocalModel) else [layers]


class LayersView(CloserView):
    """Each layer's prediction after a token, at first the one before the reply."""

    hint = "← → choose a token · Tab: scroll the layers"
    formula = Layers.formula
    DEFAULT_CSS = """
    LayersView #layers-detail { border-top: none; }
    LayersView #layers-scroll { height: 1fr; }
    LayersView #layers-text, LayersView #layers-scroll { border-top: solid $border-blurred; }
    """
    _views: Sequence[View] = ()

    def legend(self) -> Content:
        return Content("bits: how unsure the layer is · rank: of the token that followed")

    def compose(self) -> ComposeResult:
        yield Static(id="layers-detail", markup=False)
        yield TokenText(id="layers-text")
        with VerticalScroll(can_focus=True, id="layers-scroll"):
            yield Static(id="layers-table", markup=False)

    def views(self) -> Sequence[View]:
        return self._views

    def show(self, look: Look) -> None:
        self._look, self._views = look, ()
        text = self.query_one(TokenText)
        text.show(look.tokens.texts, min(look.start, len(look.tokens.texts)) - 1)
        self._choose()

    @on(TokenText.Moved)
    def _choose(self) -> None:
        look, position = self._look, self.query_one(TokenText).cursor
        session = self._conversation.session
        if look.trace is None or session is None:
            self.failed(look.reason)
        else:
            work = lambda tell: _layers_and_norms(session.model, look, position)  # noqa: E731
            self.measure("Computing the layers", work, self._computed)

    def failed(self, reason: str) -> None:
        self.say(reason)
        self.query_one("#layers-table", Static).update("")

    def _computed(self, views: list[View]) -> None:
        self._views = views
        self._draw()

    @on(Resize)
    def _draw(self) -> None:
        """Draw the last layer first, and the norms below."""
        if not self._views:
            return
        layers, *norms = self._views
        self.say(layers.reading)
        (table,) = layers.blocks()
        assert isinstance(table, Table)
        width = max(20, self.query_one("#layers-scroll").size.width - 1)
        upwards = [replace(table, rows=table.rows[::-1])]
        rows = [*drawn_blocks(upwards, width), Text(), *drawn(norms, width)]
        self.query_one("#layers-table", Static).update(Group(*rows))


_SERVED = "These are sent as messages; the server applies its model's own template."
_OUTDATED = "The reply was generated from another prompt. Below is the current one."


class PromptView(CloserView):
    """The exact string, coloured by the origin of its parts."""

    hint = "↑ ↓ scroll the prompt · p: what in it mattered"
    DEFAULT_CSS = """
    PromptView #prompt-outdated { color: $text-warning; margin-bottom: 1; }
    PromptView #prompt-legend { margin-bottom: 1; }
    PromptView #prompt-notes, PromptView #prompt-parts { margin-top: 1; }
    """
    _view: PromptText | None = None
    formula = PromptText.formula

    def compose(self) -> ComposeResult:
        yield Static(id="prompt-sentence", markup=False)
        with VerticalScroll(can_focus=True, id="prompt-scroll"):
            yield Static(_OUTDATED, id="prompt-outdated")
            yield Static(id="prompt-legend")
            yield Static(id="prompt-text", markup=False)
            yield Notice(id="prompt-notes")
            yield Static(id="prompt-parts", markup=False)

    def show(self, look: Look) -> None:
        self._look, reading = look, look.reading
        segments = (*look.segments, *(reading.segments if reading else ()))
        notes = _notes(reading) if reading else []
        self._view = PromptText.of(segments, look.tokens.ids, look.tokens.texts)
        sentence = self._view.reading
        self.query_one("#prompt-sentence", Static).update(Content.styled(sentence, "dim"))
        self.query_one("#prompt-legend", Static).update(legend(segments))
        self.query_one("#prompt-text", Static).update(colored(segments))
        self.query_one(Notice).say(Content("\n").join(notes))
        self._list_parts()
        outdated = self.query_one("#prompt-outdated", Static)
        outdated.display = reading is not None and reading.outdated
        self.query_one("#prompt-scroll").scroll_home(animate=False)

    @on(Resize)
    def _list_parts(self) -> None:
        """A row for each part in the room below the text, and the numbers of a short one."""
        if self._view is not None:
            width = max(1, self.size.width - 2)
            rows = [*drawn_blocks(self._view.lists(), width)]
            self.query_one("#prompt-parts", Static).update(Group(*rows))


def _notes(reading: "PromptReading") -> list[Content]:
    """Notes on a prompt: its demonstrations, its sources, the parts left out."""
    prompt, left_out = reading.prompt, reading.left_out
    notes = [*shot_lines(prompt.shots, prompt.dropped_shots), *source_lines(prompt.sources)]
    if prompt.messages:
        notes.append(Content.styled(_SERVED, "dim"))
    if left_out:
        words = f"Left out for length: {len(left_out)} message{'s' * (len(left_out) > 1)}"
        notes.append(Content.styled(words, "$text-warning"))
        for message in left_out:
            line = f"{SPEAKERS[message.role]}: {one_line(message.text)}"
            notes.append(Content.styled(line, "dim"))
    return notes
