"""The inspector's tabs on parts and heads: what wrote a token, its attention, what heads do."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import ref

from rich.console import Group
from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from chatapp.common.shading import percent
from chatapp.common.userfiles import Progress
from chatapp.lab.drawing.blocks import Lines, Map
from chatapp.lab.drawing.console import drawn, drawn_blocks, line_rows
from chatapp.lab.view import View
from chatapp.lab.views.attention_views import Attention
from chatapp.lab.views.head_views import MEASURES, HeadScores, HeadTexts, score_heads
from chatapp.lab.views.part_views import Why, question_at
from chatapp.tui.inspector.token_choice import HeatMap, TokenText, attended, quoted, weight_legend
from chatapp.tui.inspector.view import CloserView, Look, SwitchPart
from chatapp.tui.platform.actions import Action


class WhyView(CloserView):
    """The share of each part in a token's logit against the runner-up's, and its total effect."""

    BINDING_GROUP_TITLE = "Inspector: why"
    DEFAULT_CSS = """
    WhyView #why-detail { height: auto; max-height: 5; }
    WhyView TokenText, WhyView HeatMap { border-top: solid $border-blurred; }
    WhyView HeatMap { height: 1fr; }
    WhyView #why-scroll { height: 1fr; border-top: solid $border-blurred; }
    """
    hint = "← → choose a token · Tab, arrows: a head · Space: off, on"
    formula = Why.formula

    _view: Why | None = None
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

    @on(TokenText.Moved)
    def _choose(self) -> None:
        session, self._view = self._conversation.session, None
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
        self._view, heat = why, self.query_one(HeatMap)
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
        self._view, self._note = why, ""
        self._draw()

    @Action("Switch this head off in the chat, or on", "space", name="switch_head")
    def action_switch(self) -> None:
        if self.cell is not None:
            self.post_message(SwitchPart("{}.{}".format(*self.cell)))

    @on(HeatMap.Chosen)
    def _draw(self) -> None:
        why = self._view
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

    @on(Resize)
    def _list_parts(self) -> None:
        """All parts, the largest first."""
        if self._view is not None:
            width = max(20, self.query_one("#why-scroll").size.width - 1)
            rows = drawn_blocks([self._view.table()], width)
            self.query_one("#why-parts", Static).update(Group(*rows))


_BOTH_FROM = 30
"""Rows from which on the map and the lines are shown together."""
_MOST_LINES = 60


class AttentionView(CloserView):
    """A token's attention, as shading over the text and as a map of all heads."""

    BINDING_GROUP_TITLE = "Inspector: attention"
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

    @Action("Lines between tokens, or the map of heads", "l", name="attention_lines")
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

    @Action("Pin the token, to choose what it attends to", "enter,space", name="pin_token")
    def action_hold(self) -> None:
        text = self.query_one(TokenText)
        self._held = text.cursor if self._held is None else None
        self._choose()

    @on(TokenText.Moved)
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

    @on(HeatMap.Chosen)
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


_SOURCE_FROM = 70
"""Columns from which on the source of a measure has room; F1 shows it, too."""


class HeadsView(CloserView):
    """Each head's score by one measure, and the texts where the chosen head is strongest."""

    BINDING_GROUP_TITLE = "Inspector: heads"
    ALSO = (Action("Stop measuring", "escape", call="stop", name="stop"),)
    DEFAULT_CSS = """
    HeadsView #heads-detail { height: auto; max-height: 7; }
    Inspector.-low #heads-detail { max-height: 5; }
    HeadsView HeatMap { height: 1fr; }
    HeadsView #heads-scroll { height: 1fr; border-top: solid $border-blurred; }
    """
    formula = HeadScores.formula
    hint = "arrows: a head · m: another measure · Enter: its texts"

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

    @Action("Next measure", "m", call="measure(1)", name="next_measure")
    @Action("Previous measure", "M", call="measure(-1)", name="previous_measure")
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

    @on(Resize)
    def _list(self) -> None:
        """All heads by the measure, or the texts of one."""
        width = max(20, self.query_one("#heads-scroll").size.width - 1)
        if self._strongest is not None:
            rows = drawn([self._strongest], width)
        elif self._scores is not None:
            rows = drawn_blocks([self._scores.table()], width)
        else:
            return
        self.query_one("#heads-texts", Static).update(Group(*rows))

    @Action("The texts where this head is strongest", "enter", name="head_texts")
    def action_texts(self) -> None:
        model = None if self._model is None else self._model()
        if self.cell is None or model is None or self._scores is None:
            return
        from chatapp.lab.heads import texts_of_head

        layer, head = self.cell

        def work(tell: Progress) -> HeadTexts:
            return HeadTexts(layer, head, texts_of_head(model, layer, head, progress=tell))

        self.measure("Reading texts", work, self._show_texts)

    def _show_texts(self, texts: HeadTexts) -> None:
        self._strongest = texts
        self._draw()
