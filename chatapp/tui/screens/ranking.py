"""The replies to one message, ranked by the user.

Invariant: a ranking counts only when the user saves it.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from chatapp.common.foreign import printable
from chatapp.tui.platform.actions import Action
from chatapp.tui.widgets.dialog import Dialog, Options
from chatapp.tui.widgets.message_parts import TextBody

if TYPE_CHECKING:
    from chatapp.dialogue.store.rows import StoredMessage

_LINE = 200


class RankScreen(Dialog[list[int] | None]):
    """Returns the ids of the replies, the best first, or None when nothing was decided.

    replies: two or more. ranks: their current ranks, from 1, by id; the others follow.
    """

    BINDING_GROUP_TITLE = "Ranking replies"

    def __init__(self, replies: "Sequence[StoredMessage]", ranks: Mapping[int, int]) -> None:
        super().__init__()
        last = len(replies) + 1
        self._replies = sorted(replies, key=lambda reply: ranks.get(reply.id, last))

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Rank the replies, the best first", classes="title")
            yield Options()
            with VerticalScroll(can_focus=False):
                yield TextBody()
            yield Static("u moves a reply up, d down · Enter saves · Esc cancels", classes="hint")

    def on_mount(self) -> None:
        self._show(0)

    def _show(self, index: int) -> None:
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(
            Option(Content(f"{number}  {self._line(reply)}"))
            for number, reply in enumerate(self._replies, 1)
        )
        options.highlighted = index

    def _line(self, reply: "StoredMessage") -> str:
        return " ".join(printable(reply.text[:_LINE]).split()) or "(empty)"

    @on(OptionList.OptionHighlighted)
    def _show_whole(self, event: OptionList.OptionHighlighted) -> None:
        self.query_one(TextBody).replace(self._replies[event.option_index].text)

    @Action("Move the reply up", "shift+up,u", call="move(-1)", name="move_up")
    @Action("Move the reply down", "shift+down,d", call="move(1)", name="move_down")
    def action_move(self, step: int) -> None:
        index = self.query_one(OptionList).highlighted or 0
        target = index + step
        if 0 <= target < len(self._replies):
            self._replies.insert(target, self._replies.pop(index))
            self._show(target)

    @Action("Save this order", "enter", name="choose")
    @on(OptionList.OptionSelected)
    def action_apply(self) -> None:
        self.dismiss([reply.id for reply in self._replies])
