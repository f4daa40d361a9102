"""The inspector's tab that patches between two texts: which states carry their difference."""

from functools import partial
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from chatapp.common.userfiles import UserError
from chatapp.lab.drawing.blocks import Map
from chatapp.lab.drawing.console import drawn_blocks
from chatapp.lab.view import token_of
from chatapp.lab.views.patch_view import Patches, compare
from chatapp.tui.conversation.conversation import Conversation
from chatapp.tui.inspector.token_choice import HeatMap, TokenText
from chatapp.tui.inspector.view import InspectorTab, Look
from chatapp.tui.platform.actions import Action
from chatapp.tui.widgets.dialog import Field

if TYPE_CHECKING:
    from chatapp.dialogue.reading import PromptReading
    from chatapp.lab.patching import Direction

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
    ALSO = (Action("Stop measuring", "escape", call="stop", name="stop"),)
    DEFAULT_CSS = """
    CompareView #compare-detail { height: auto; max-height: 4; }
    CompareView TokenText { max-height: 20%; border-top: solid $border-blurred; }
    CompareView Field { height: 1; border: none; padding: 0 1; display: none; }
    CompareView #compare-scroll { height: 5fr; border-top: solid $border-blurred; }
    CompareView HeatMap { height: 4fr; min-height: 3; border-top: solid $border-blurred; }
    CompareView.-single TokenText { max-height: 50%; }
    CompareView.-single HeatMap { display: none; }
    """
    hint = "Enter: another token · v: next version · d: direction · e: measure after this"
    formula = Patches.formula

    _end = 0
    _direction: "Direction" = "restore"
    _view: Patches | None = None

    def __init__(self, conversation: Conversation, *, id: str | None = None) -> None:
        super().__init__(conversation, id=id)
        self._other: dict[int, int] = {}

    def legend(self) -> Content:
        return Content("orange and + bring it back · blue and - work against it")

    def compose(self) -> ComposeResult:
        yield Static(id="compare-detail", markup=False)
        yield TokenText(id="compare-text")
        yield Field(id="compare-other", placeholder="another token in its place, such as a name")
        with VerticalScroll(can_focus=True, id="compare-scroll"):
            yield Static(id="compare-table", markup=False)
        yield HeatMap()

    def show(self, look: Look) -> None:
        self._look, self._other = look, {}
        self._end = max(0, min(look.start, len(look.tokens.texts)) - 1)
        self.query_one(TokenText).show(look.tokens.texts, self._end)
        self._measure()

    def _measure(self) -> None:
        """Measure the patches between the two texts, if they differ."""
        look, session = self._look, self._conversation.session
        self._view, self._wanted = None, None
        if look.trace is None or session is None:
            self.failed(look.reason)
            return
        if not self._other:
            self.failed(_NOTHING)
            steps = Table.grid(padding=(0, 1))
            for step in _STEPS:
                steps.add_row(*step)
            self.query_one("#compare-table", Static).update(steps)
            return
        clean = look.tokens.ids[: self._end + 1]
        corrupt = [self._other.get(position, id) for position, id in enumerate(clean)]
        model, changes, direction = session.model, look.changes, self._direction
        work = lambda tell: compare(model, clean, corrupt, direction, changes, tell)  # noqa: E731
        self.measure("Measuring the patches", work, self._measured)

    def _measured(self, patches: Patches) -> None:
        self._view = patches
        self._draw()

    def failed(self, reason: str) -> None:
        self.say(reason)
        self.add_class("-single")
        self.query_one("#compare-table", Static).update("")

    # Keys

    @Action("Write another token here", "enter", name="write_token")
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

        def work(tell: object) -> int:
            if own.startswith(" ") and not text.startswith(" "):
                try:
                    return token_of(tokenizer, f" {text}", "the other token")
                except UserError:
                    pass
            return token_of(tokenizer, text, "the other token")

        self.measure("Looking for the token", work, partial(self._replace, position))

    def _replace(self, position: int, id: int) -> None:
        if id == self._look.tokens.ids[position]:
            self._other.pop(position, None)
        else:
            self._other[position] = id
        if position > self._end:
            self._end = len(self._look.tokens.ids) - 1
        self._measure()

    @Action("Take the text's own token again", "backspace", name="restore_token")
    def action_restore(self) -> None:
        if self._other.pop(self.query_one(TokenText).cursor, None) is not None:
            self._measure()

    @Action("Measure after the chosen token", "e", name="measure_end")
    def action_end(self) -> None:
        self._end = self.query_one(TokenText).cursor
        self._measure()

    @Action("Patch in the other direction", "d", name="patch_direction")
    def action_direction(self) -> None:
        self._direction = "destroy" if self._direction == "restore" else "restore"
        self._measure()

    @Action("Compare with the reply's next version", "v", name="compare_version")
    def action_version(self) -> None:
        message, session = self._look.message, self._conversation.session
        if message is None or session is None or message.siblings < 2:
            self.notify("There is no other version of a reply here.", markup=False)
            return

        def work(tell: object) -> "PromptReading":
            from chatapp.dialogue.reading import read

            versions = session.chat.store.siblings(message.id)
            return read(session, versions[message.sibling % len(versions)].id)

        self.measure("Reading the version", work, self._compare_with)

    def _compare_with(self, reading: "PromptReading") -> None:
        """Compare with another version, as far as the shorter one goes."""
        ids, other = self._look.tokens.ids, (*reading.prompt.ids, *reading.reply_ids)
        pairs = enumerate(zip(ids, other, strict=False))
        self._other = {position: its for position, (own, its) in pairs if own != its}
        self._end = min(len(ids), len(other)) - 1
        self._measure()

    # Drawing

    @on(Resize)
    @on(HeatMap.Chosen)
    def _draw(self) -> None:
        patches = self._view
        if patches is None:
            return
        self.remove_class("-single")
        heat, heads = self.query_one(HeatMap), patches.result.grids[1]
        heat.show(Map(heads.values, is_signed=True))
        words = [patches.reading]
        if heat.cell is not None:
            layer, head = heat.cell
            words.append(f"{layer}.{head}, at all tokens: {heads.values[layer][head]:+.3f}")
        self.say("\n".join(words))
        width = max(20, self.query_one("#compare-scroll").size.width - 1)
        rows = drawn_blocks(patches.streams(), width)
        self.query_one("#compare-table", Static).update(Group(*rows))
