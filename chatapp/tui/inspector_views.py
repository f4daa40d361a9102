"""The tabs of the inspector that look at a text: prompt, tokens, attention, layers.

The one invariant: a view shows one `Look`, and asks the inspector, never the model, for what
has to be computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Click
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from chatapp.foreign import printable
from chatapp.shading import bar, ink_on, percent, visible, weight_color
from chatapp.tui.inspector_look import Look
from chatapp.tui.inspector_tokens import NOTHING, TokenText, attended, surprise
from chatapp.tui.message import SPEAKERS
from chatapp.tui.options import Options
from chatapp.tui.rendered import colored, legend, one_line, shot_lines

if TYPE_CHECKING:
    from numpy import float32
    from numpy.typing import NDArray

    from chatapp.engine.inspection import Candidate, Prediction, Trace

_LONGEST = 16
_OUTDATED = "The reply was generated from another prompt. This one it would be generated from now."


@dataclass
class Compute(Message):
    """A view wants `work` done on a thread, and then `show` with what it gives.

    fail: is told instead, in words, why it could not be done. slot: a newer request of the
    same name makes this one void; "" is never void.
    """

    work: Callable[[], Any]
    show: Callable[[Any], None]
    fail: Callable[[str], None]
    slot: str = ""


@dataclass
class Branch(Message):
    """The user wants another reply that begins with the tokens `begin`."""

    message_id: int
    begin: tuple[int, ...]


def quoted(text: str) -> Content:
    """A token between bars, so that its spaces can be seen."""
    shown = Content(visible(text) or NOTHING).truncate(_LONGEST, ellipsis=True)
    return Content.assemble(("│", "dim"), shown, ("│", "dim"))


def padded(text: str) -> Content:
    """A token between bars, in a column of its own."""
    piece = quoted(text)
    return piece.pad_right(max(0, _LONGEST + 2 - piece.cell_length))


def candidate_line(candidate: "Candidate", came: bool, width: int) -> Content:
    """An alternative with its rank, text, probability and a bar."""
    size = max(0, min(24, width - _LONGEST - 18))
    return Content.assemble(
        f"{candidate.rank:>2} {'●' if came else ' '} ", padded(candidate.text),
        f" {percent(candidate.probability)} {bar(candidate.probability, size)}",
    )  # fmt: skip


class Choices(Options):
    """Lines to choose from. A mark shows which one is chosen where there are no colours."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._contents: list[Content] = []

    def show(self, lines: Sequence[tuple[str, Content]], highlighted: int = 0) -> None:
        """Offer other lines, each with an id; one of them is highlighted."""
        self.clear_options()
        self._contents = [line for _, line in lines]
        self.add_options(Option(Content("  ") + line, id=id) for id, line in lines)
        self.highlighted = min(highlighted, len(lines) - 1) if lines else None
        self._mark_chosen()

    def on_option_list_option_highlighted(self) -> None:
        self._mark_chosen()

    def _mark_chosen(self) -> None:
        for place, line in enumerate(self._contents):
            mark = Content("› " if place == self.highlighted else "  ")
            self.replace_option_prompt_at_index(place, mark + line)


class View(Vertical):
    """One tab. hint: its main keys."""

    hint = ""

    def show(self, look: Look) -> None:
        """Show another text."""
        raise NotImplementedError

    def take_focus(self) -> None:
        """Give the keys to the first widget that takes them."""
        for widget in self.query("*"):
            if widget.can_focus and widget.display:
                widget.focus()
                return


class PromptView(View):
    """The exact string, coloured by where each part of it comes from."""

    hint = "↑ ↓ scroll"

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=True, id="prompt-scroll"):
            yield Static(_OUTDATED, id="prompt-outdated")
            yield Static(id="prompt-legend")
            yield Static(id="prompt-text", markup=False)
            yield Static(id="prompt-notes", markup=False)

    def show(self, look: Look) -> None:
        self.query_one("#prompt-legend", Static).update(legend(look.segments))
        self.query_one("#prompt-text", Static).update(colored(look.segments))
        notes = list(shot_lines(look.shots, look.dropped_shots))
        if look.left_out:
            count = len(look.left_out)
            words = f"Left out for length: {count} message{'s' * (count > 1)}"
            notes.append(Content.styled(words, "$text-warning"))
            for message in look.left_out:
                line = f"{SPEAKERS[message.role]}: {one_line(message.text)}"
                notes.append(Content.styled(line, "dim"))
        self.query_one("#prompt-notes", Static).update(Content("\n").join(notes))
        outdated = self.query_one("#prompt-outdated", Static)
        outdated.display = look.outdated
        self.query_one("#prompt-scroll").scroll_home(animate=False)


class TokensView(View):
    """Token boundaries and ids, how probable each was, and what else might have come.

    At first the reply's first token is chosen.
    """

    hint = "arrows token · Tab Enter branch there"

    _look: Look | None = None

    def compose(self) -> ComposeResult:
        yield TokenText(id="tokens-text")
        yield Static(id="tokens-detail", markup=False)
        yield Choices(id="tokens-alternatives")

    def show(self, look: Look) -> None:
        self._look = look
        text = self.query_one(TokenText)
        text.show(look.texts, min(look.start, len(look.texts) - 1))
        # What a user wrote was not generated; it is shaded only where there is nothing else.
        first = look.start if look.start < len(look.ids) else 1
        expected = [look.before(position) for position in range(len(look.ids))]
        text.paint(
            [
                surprise(each.actual.probability)
                if each is not None and each.actual is not None and position >= first
                else None
                for position, each in enumerate(expected)
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
        before = look.before(position)
        line = Content.assemble(
            ("token ", "dim"), f"{position} ", quoted(look.texts[position]),
            (" id ", "dim"), f"{look.ids[position]}",
        )  # fmt: skip
        lines: list[tuple[str, Content]] = []
        if before is None or before.actual is None:
            words = look.reason or "Nothing comes before the first token, so nothing predicts it."
            line += Content.styled(f"\n{printable(words)}", "dim")
        else:
            line += Content.assemble(
                ("  p ", "dim"), percent(before.actual.probability).strip(),
                ("  rank ", "dim"), f"{before.actual.rank:,}",
                ("  entropy ", "dim"), f"{before.entropy:.2f} bits",
            )  # fmt: skip
            for each in before.candidates:
                came = each.id == before.actual.id
                lines.append((f"{position} {each.id}", candidate_line(each, came, self.size.width)))
        self.query_one(Choices).show(lines)
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
            self.notify("The reply goes on with this token already.", markup=False)
        else:
            begin = (*look.ids[look.start : position], id)
            self.post_message(Branch(look.message.id, begin))


class HeatMap(ScrollView, can_focus=True):
    """A row a layer, a column a head; one cell chosen, or none for the average of all."""

    BINDING_GROUP_TITLE = "Inspector: layers and heads"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(0, -1)", "Head before", show=False),
        Binding("right", "move(0, 1)", "Head after", show=False),
        Binding("up", "move(-1, 0)", "Layer before", show=False),
        Binding("down", "move(1, 0)", "Layer after", show=False),
        Binding("a", "average", "Average of all layers and heads", show=False),
    ]
    DEFAULT_CSS = """
    HeatMap {
        height: auto;
        max-height: 50%;
        overflow-x: hidden;
        overflow-y: auto;
    }
    """

    class Chosen(Message):
        """Another head was chosen, or the average."""

    def __init__(self) -> None:
        super().__init__()
        self.cell: tuple[int, int] | None = None
        """Layer and head from 0."""
        self._cells: list[list[float]] = []

    def show(self, cells: list[list[float]]) -> None:
        """Show other weights (layers, heads)."""
        if self.cell is not None and (len(cells), len(cells[0])) != self._shape:
            self.cell = None
        self._cells = cells
        size = Size(1, len(cells) + 1)
        if size != self.virtual_size:
            self.virtual_size = size
            self.refresh(layout=True)
        self.refresh()

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self._cells), len(self._cells[0]) if self._cells else 0

    def render_line(self, y: int) -> Strip:
        base, width = self.rich_style, self.size.width
        y += self.scroll_offset.y
        layers, heads = self._shape
        if not 0 <= y <= layers or not heads:
            return Strip.blank(width, base)
        dim = base + Style(dim=True)
        room = 3 if 4 + 3 * heads <= width else 1
        if y == 0:
            names = [
                f"{head:>{room}}" if room > 1 else str(head % 10) for head in range(1, heads + 1)
            ]
            segments = [Segment("  L ", dim), Segment("".join(names), dim)]
            return Strip(segments).adjust_cell_length(width, base)
        segments = [Segment(f"{y:>3} ", dim)]
        for head, weight in enumerate(self._cells[y - 1]):
            number = min(99, round(100 * weight)) if room > 1 else min(9, int(10 * weight))
            style = base + self._style(weight, (y - 1, head) == self.cell)
            segments.append(Segment(f"{number:>{room}}", style))
        return Strip(segments).adjust_cell_length(width, base)

    def _style(self, weight: float, chosen: bool) -> Style:
        if chosen:
            return Style(reverse=True, bold=True, underline=not self.has_focus)
        if self.app.native_ansi_color:
            return Style(dim=weight < 0.05, bold=weight > 0.3)
        color = weight_color(weight**0.5)  # most are small
        return Style(color=RichColor.from_rgb(*ink_on(color)), bgcolor=RichColor.from_rgb(*color))

    def _choose(self, cell: tuple[int, int] | None) -> None:
        if cell != self.cell:
            self.cell = cell
            if cell is not None:
                row = Region(0, cell[0] + 1, 1, 1)
                self.scroll_to_region(row, animate=False, force=True)
            self.refresh()
            self.post_message(self.Chosen())

    def action_move(self, down: int, right: int) -> None:
        layers, heads = self._shape
        if not heads:
            return
        layer, head = self.cell or (layers - 1 - down, 0 - right)
        self._choose((max(0, min(layer + down, layers - 1)), max(0, min(head + right, heads - 1))))

    def action_average(self) -> None:
        self._choose(None)

    def on_click(self, event: Click) -> None:
        layers, heads = self._shape
        room = 3 if 4 + 3 * heads <= self.size.width else 1
        layer, head = event.y + self.scroll_offset.y - 1, (event.x - 4) // room
        if 0 <= layer < layers and 0 <= head < heads and event.x >= 4:
            self._choose((layer, head))


class AttentionView(View):
    """What a token attends to, as shading over the text and as a map of all heads."""

    BINDING_GROUP_TITLE = "Inspector: attention"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "hold", "Hold the token, to choose what it looks at", show=False),
    ]
    hint = "arrows token · Enter hold · Tab heads"

    def compose(self) -> ComposeResult:
        yield TokenText(id="attention-text")
        yield Static(id="attention-detail", markup=False)
        yield HeatMap()

    def show(self, look: Look) -> None:
        self._look = look
        self._held: int | None = None
        self._known: tuple[int, NDArray[float32]] | None = None
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
        elif self._known is not None and self._known[0] == source:
            self._draw()
        else:
            work = partial(_with_source, trace, source)
            self.post_message(Compute(work, self._computed, self._failed, "attention"))

    def _failed(self, reason: str) -> None:
        words = Content.styled(printable(reason), "dim")
        self.query_one("#attention-detail", Static).update(words)
        self.query_one(HeatMap).display = False

    def _computed(self, found: "tuple[int, NDArray[float32]]") -> None:
        self._known = found
        self._draw()

    def _draw(self) -> None:
        if self._known is None or self._known[0] != self._source:
            return
        source, found = self._known
        heat, text = self.query_one(HeatMap), self.query_one(TokenText)
        cell = heat.cell
        weights: list[float] = (
            found.mean(axis=(0, 1)) if cell is None else found[cell[0], cell[1]]
        ).tolist()
        order = sorted(range(len(weights)), key=lambda place: -weights[place])
        # The first token takes what a head has no use for, and would outshine the others.
        brightest = max(weights[1:], default=0.0) or 1.0
        text.paint([attended(weight, brightest) for weight in weights], self._held)
        target = next((place for place in order if place not in (0, source)), order[0])
        if self._held is not None and text.cursor <= source:
            target = text.cursor
        heat.show(found[:, :, target].tolist())
        texts = self._look.texts
        heads = (
            "average of all heads" if cell is None else f"layer {cell[0] + 1}, head {cell[1] + 1}"
        )
        most = Content(" ").join(
            Content.assemble(quoted(texts[place]), f" {percent(weights[place]).strip()} ")
            for place in order[:4]
        )
        detail = Content.assemble(
            quoted(texts[source]), " held" if self._held is not None else "",
            (" attends to ", "dim"), most, ("\n" + heads, "$text-accent"),
            ("; the map: weight on ", "dim"),
            quoted(texts[target]), (f" {percent(weights[target]).strip()}, in percent", "dim"),
        )  # fmt: skip
        self.query_one("#attention-detail", Static).update(detail)


def _with_source(trace: "Trace", source: int) -> "tuple[int, NDArray[float32]]":
    return source, trace.attention(source)


class LayersView(View):
    """What each layer would predict after a token, at first the one before the reply."""

    hint = "arrows token · Tab scroll layers"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._guesses: list[Prediction] = []

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
        self._tell(Content.styled(printable(reason), "dim"))
        self.query_one("#layers-table", Static).update("")

    def _tell(self, words: Content) -> None:
        self.query_one("#layers-detail", Static).update(words)

    def on_resize(self) -> None:
        if self._guesses:
            self._computed(self._guesses)

    def _computed(self, guesses: "list[Prediction]") -> None:
        self._guesses = guesses
        look, position = self._look, self.query_one(TokenText).cursor
        came = guesses[0].actual
        words = Content.assemble(("each layer's guess after ", "dim"), quoted(look.texts[position]))
        if came is not None:
            words += Content.assemble((", where ", "dim"), quoted(came.text), (" came", "dim"))
        self._tell(words)
        width = self.size.width - 2
        header = " layer  bits" + ("    rank" if came else "") + "  would predict"
        rows = [Content.styled(header, "dim")]
        for layer in reversed(range(len(guesses))):
            guess = guesses[layer]
            line = Content(f"{layer:>6} {guess.entropy:>5.1f}")
            if guess.actual is not None:
                line += Content(f" {guess.actual.rank:>7,}")
            line += Content(" ")
            for each in guess.candidates:
                right = came is not None and each.id == came.id
                piece = quoted(each.text).stylize("bold $text-success" if right else "")
                more = Content.assemble(
                    " ", piece, (f" {percent(each.probability).strip()}", "dim")
                )
                if line.cell_length + more.cell_length > width:
                    break
                line += more
            rows.append(line)
        self.query_one("#layers-table", Static).update(Content("\n").join(rows))
