"""The inspector's tab that patches between two texts: which states carry their difference.

Invariant: a row shows the two tokens of one place, and the effects of the states there. Measuring
ends as soon as a reply is to be generated, Esc is pressed, or other texts are chosen.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len, chop_cells
from rich.style import Style
from rich.table import Table
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.style import Style as ContentStyle
from textual.widgets import Static

from chatapp.common.foreign import printable
from chatapp.common.shading import hexadecimal, ink_on, signed_color, signed_number, visible
from chatapp.common.userfiles import UserError
from chatapp.lab.view import View
from chatapp.tui.conversation.conversation import Conversation
from chatapp.tui.inspector.heat_map import HeatMap
from chatapp.tui.inspector.token_text import TokenText
from chatapp.tui.inspector.view import Compute, InspectorTab, Left, Look, Measuring
from chatapp.tui.inspector.why import ShareMap
from chatapp.tui.widgets.dialog import Field

if TYPE_CHECKING:
    from chatapp.dialogue.reading import Reading
    from chatapp.lab.patching import Direction, Grid
    from chatapp.lab.views.patch_view import Patches

_REMARK_FROM = 16
"""Rows from which on there is room for what the patches do not change."""

_NOTHING = (
    "Which states carry the difference of two texts? Enter writes another token in place of the "
    "chosen one; v takes the reply's next version."
)
_STEPS = (
    ("1", "← → choose a token above, such as the name of a city."),
    ("2", "Enter, then another name that is one token: the second text differs in it alone."),
    ("3", "Each state of one text is put into the other: a row a token, a column a layer. Orange "
     "brings the answer back."),
    ("4", "The map below does it for each head. Tab, then the arrows choose one."),
    ("", ""),
    ("d", "puts the states in the other direction."),
    ("e", "measures the answer after the chosen token."),
    ("v", "takes the reply's next version as the second text."),
    ("", "Backspace takes the text's own token again."),
)  # fmt: skip


class CompareView(InspectorTab):
    """Patches between the text and another of as many tokens, by layer and token and by head."""

    BINDING_GROUP_TITLE = "Inspector: compare"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "write", "Write another token here", show=False),
        Binding("backspace", "restore", "Take the text's own token again", show=False),
        Binding("v", "version", "Compare with the reply's next version", show=False),
        Binding("e", "end", "Measure after the chosen token", show=False),
        Binding("d", "direction", "Patch in the other direction", show=False),
        Binding("escape", "stop", "Stop measuring", show=False),
    ]
    DEFAULT_CSS = """
    CompareView #compare-detail { height: auto; max-height: 4; }
    CompareView TokenText { max-height: 20%; border-top: solid $border-blurred; }
    CompareView Field { height: 1; border: none; padding: 0 1; display: none; }
    CompareView #compare-scroll { height: 5fr; border-top: solid $border-blurred; }
    CompareView ShareMap { height: 4fr; min-height: 3; border-top: solid $border-blurred; }
    CompareView.-single TokenText { max-height: 50%; }
    CompareView.-single ShareMap { display: none; }
    """
    hint = "Enter: another token here · v: the next version · d: direction · e: measure after this"
    formula = (
        "restored = (LD patched - LD corrupt) / (LD clean - LD corrupt), LD the difference of the "
        "logits of the two likeliest answers; Heimersheim and Nanda 2024, arXiv 2404.15255; Zhang "
        "and Nanda 2024, arXiv 2309.16042."
    )

    def __init__(self, conversation: Conversation, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._conversation = conversation
        self._other: dict[int, int] = {}
        self._end = 0
        self._direction: Direction = "restore"
        self._patches: Patches | None = None
        self._wanted: object | None = None

    def legend(self) -> Content:
        return Content("orange and + bring it back · blue and - work against it")

    def compose(self) -> ComposeResult:
        yield Static(id="compare-detail", markup=False)
        yield TokenText(id="compare-text")
        yield Field(id="compare-other", placeholder="another token in its place, such as a name")
        with VerticalScroll(can_focus=True, id="compare-scroll"):
            yield Static(id="compare-table", markup=False)
        yield ShareMap()

    def show(self, look: Look) -> None:
        self._look, self._other = look, {}
        self._end = max(0, min(look.start, len(look.tokens.texts)) - 1)
        self.query_one(TokenText).show(look.tokens.texts, self._end)
        self._measure()

    def findings(self) -> Sequence[View]:
        return [self._patches] if self._patches is not None else []

    def on_unmount(self) -> None:
        self._patches = self._wanted = None  # which hold the model

    def on_resize(self) -> None:
        self._draw()

    def _measure(self) -> None:
        """Measure the patches between the two texts, if they differ."""
        look, session = self._look, self._conversation.session
        self._patches, self._wanted = None, None
        if look.trace is None or session is None:
            self._failed(look.reason)
            return
        if not self._other:
            self._failed(_NOTHING)
            steps = Table.grid(padding=(0, 1))
            for step in _STEPS:
                steps.add_row(*step)
            self.query_one("#compare-table", Static).update(steps)
            return
        clean = look.tokens.ids[: self._end + 1]
        corrupt = [self._other.get(position, id) for position, id in enumerate(clean)]
        model, changes, direction = session.model, look.changes, self._direction
        wanted = self._wanted = object()

        def tell(done: int, total: int) -> None:
            if self._wanted is not wanted or self._conversation.turn is not None:
                raise Left
            self.post_message(Measuring(done, total))

        def work() -> "Patches | None":
            from chatapp.lab.views.patch_view import compare

            try:
                return compare(model, clean, corrupt, direction, changes, tell)
            except Left:
                return None

        self._detail("Measuring the patches …")
        self.post_message(Compute(work, partial(self._measured, wanted), self._failed, "compare"))

    @on(Measuring)
    def _show_measuring(self, event: Measuring) -> None:
        event.stop()
        if self._wanted is not None and self._patches is None:
            self._detail(f"Measuring the patches: {event.done} of {event.total} … Esc stops")

    def _measured(self, wanted: object, patches: "Patches | None") -> None:
        if self._wanted is not wanted:
            return
        self._wanted, self._patches = None, patches
        if patches is None:
            self._failed("Stopped for a reply.")
        self._draw()

    def _failed(self, reason: str) -> None:
        self._wanted = None
        self._detail(reason)
        self.add_class("-single")
        self.query_one("#compare-table", Static).update("")

    def _detail(self, words: str) -> None:
        self.query_one("#compare-detail", Static).update(Content.styled(printable(words), "dim"))

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self._wanted is not None if action == "stop" else True

    def action_stop(self) -> None:
        self._failed("Stopped. d or another token measures again.")

    def action_write(self) -> None:
        field = self.query_one(Field)
        field.value, field.display = "", True
        field.focus()

    @on(Field.Submitted)
    def _written(self, event: Field.Submitted) -> None:
        event.stop()
        event.input.display = False
        self.query_one(TokenText).focus()
        session, text = self._conversation.session, event.value
        if session is None or not text:
            return
        tokenizer, position = session.model.tokenizer, self.query_one(TokenText).cursor
        own = self._look.tokens.texts[position]

        def work() -> int:
            from chatapp.lab.view import token_of

            if own.startswith(" ") and not text.startswith(" "):
                try:
                    return token_of(tokenizer, f" {text}", "the other token")
                except UserError:
                    pass
            return token_of(tokenizer, text, "the other token")

        self.post_message(Compute(work, partial(self._replace, position), self._failed, "compare"))

    def _replace(self, position: int, id: int) -> None:
        if id == self._look.tokens.ids[position]:
            self._other.pop(position, None)
        else:
            self._other[position] = id
        if position > self._end:
            self._end = len(self._look.tokens.ids) - 1
        self._measure()

    def action_restore(self) -> None:
        if self._other.pop(self.query_one(TokenText).cursor, None) is not None:
            self._measure()

    def action_end(self) -> None:
        self._end = self.query_one(TokenText).cursor
        self._measure()

    def action_direction(self) -> None:
        self._direction = "destroy" if self._direction == "restore" else "restore"
        self._measure()

    def action_version(self) -> None:
        message, session = self._look.message, self._conversation.session
        if message is None or session is None or message.siblings < 2:
            self.notify("There is no other version of a reply here.", markup=False)
            return

        def work() -> "Reading":
            from chatapp.dialogue.reading import read

            versions = session.chat.store.siblings(message.id)
            return read(session, versions[message.sibling % len(versions)].id)

        self.post_message(Compute(work, self._compare_with, self._failed, "compare"))

    def _compare_with(self, reading: "Reading") -> None:
        """Compare with another version, as far as the shorter one goes."""
        ids, other = self._look.tokens.ids, (*reading.prompt.ids, *reading.reply_ids)
        pairs = enumerate(zip(ids, other, strict=False))
        self._other = {position: its for position, (own, its) in pairs if own != its}
        self._end = min(len(ids), len(other)) - 1
        self._measure()

    # Drawing

    @on(HeatMap.Chosen)
    def _draw(self) -> None:
        patches = self._patches
        if patches is None:
            return
        self.remove_class("-single")
        streams, heads = patches.result.grids
        heat = self.query_one(ShareMap)
        if heat.cell and not (
            heat.cell[0] < len(heads.values) and heat.cell[1] < len(heads.values[0])
        ):
            heat.cell = None  # another model has fewer
        heat.show(heads.values)
        words = [patches.reading]
        if heat.cell is not None:
            layer, head = heat.cell
            words.append(f"{layer}.{head}, at all tokens: {heads.values[layer][head]:+.3f}")
        if patches.remark and self.size.height >= _REMARK_FROM:
            words.append(patches.remark)
        self._detail("\n".join(words))
        self.query_one("#compare-table", Static).update(self._table(patches, streams))

    def _table(self, patches: "Patches", grid: "Grid") -> Content:
        """A row a token from the first that differs, a column a layer."""
        layers, width = len(grid.values), self.size.width - 6
        texts = [visible(text) for text in (*patches.question.texts, *patches.corrupt_texts)]
        longest = max(10, *(cell_len(text) + 3 for text in texts))
        columns = next((size for size in (8, 6, 4) if 2 * longest + size * layers <= width), 1)
        room = max(10, min(longest, (width - columns * layers) // 2))
        largest = max((abs(value) for row in grid.values for value in row), default=0.0)
        names = "".join(
            f"{layer:>{columns}}" if columns > 1 else str(layer % 10) for layer in range(layers)
        )
        head = f"{'':4}{'this text':<{room}}{'the other':<{room}}{names}"
        axis = f"{'token ↓':<{4 + 2 * room}}{' ' * (columns - 1)}layer →"
        lines = [Content.styled(axis, "dim"), Content.styled(head, "dim")]
        first = min(patches.differing, default=0)
        for place in range(first, len(patches.corrupt_texts)):
            own, other = patches.question.texts[place], patches.corrupt_texts[place]
            pieces = [_pieces(own, room), _pieces(other, room) if own != other else []]
            for row in range(max(map(len, pieces))):
                line = Content(f"{place if not row else '':>3} ")
                for piece in pieces:
                    line += piece[row] if row < len(piece) else Content(" " * room)
                if not row:
                    for layer in range(layers):
                        line += self._cell(grid.values[layer][place], largest, columns)
                lines.append(line)
        return Content("\n").join(lines)

    def _cell(self, value: float, largest: float, columns: int) -> Content:
        share = value / largest if largest else 0.0
        color = signed_color(share)
        style: str | ContentStyle = f"{hexadecimal(ink_on(color))} on {hexadecimal(color)}"
        if self.app.native_ansi_color:
            style = ContentStyle.from_rich_style(Style(dim=abs(share) < 0.2, bold=abs(share) > 0.5))
        return Content.styled(signed_number(value, largest, columns), style)


def _pieces(text: str, columns: int) -> list[Content]:
    """A token between bars in rows of so many columns, the last of which is empty."""
    rows = chop_cells(f"│{visible(text)}│", columns - 1)
    return [Content(row + " " * (columns - cell_len(row))) for row in rows]
