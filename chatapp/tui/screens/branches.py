"""The versions of messages: all branches of a chat, to move to any of them, and replies to rank."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from chatapp.common.foreign import one_line
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.database import StoreError
from chatapp.dialogue.store.rows import StoredMessage
from chatapp.tui.platform.actions import Action
from chatapp.tui.widgets.dialog import Dialog, Notice, PlainOptions
from chatapp.tui.widgets.message import SPEAKERS
from chatapp.tui.widgets.message_parts import TextBody

_DEEPEST = 12
_LINE = 200


def in_order(messages: Sequence[StoredMessage]) -> Iterator[tuple[StoredMessage, int]]:
    """Each message with the number of forks above it: a branch from end to end, then the next.

    messages: of one chat, oldest first.
    """
    below: dict[int | None, list[StoredMessage]] = {}
    for message in messages:
        below.setdefault(message.parent_id, []).append(message)
    waiting = [(message, int(message.siblings > 1)) for message in reversed(below.get(None, []))]
    while waiting:
        message, forks = waiting.pop()
        yield message, forks
        waiting += [
            (answer, forks + (answer.siblings > 1))
            for answer in reversed(below.get(message.id, []))
        ]


class BranchScreen(Dialog[int | None]):
    """Returns the id of the message to show, or None."""

    BINDING_GROUP_TITLE = "Branches of a chat"
    ALSO = (Action("Close", "ctrl+b", call="dismiss", name="branches"),)

    def __init__(self, store: Store, chat_id: int) -> None:
        super().__init__()
        self._store = store
        self._chat_id = chat_id

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Branches", classes="title")
            yield PlainOptions()
            yield Notice(id="nothing")
            yield Static("● is shown now · Enter goes to a message · Esc closes", classes="hint")

    def on_mount(self) -> None:
        self._fill()

    @work
    async def _fill(self) -> None:
        try:
            messages = await asyncio.to_thread(self._store.tree, self._chat_id)
            path = await asyncio.to_thread(self._store.path, self._chat_id)
        except StoreError as error:
            self.query_one(Notice).say(str(error))
            return
        shown = {message.id for message in path}
        rows = list(in_order(messages))
        options = self.query_one(OptionList)
        options.add_options(
            Option(self._row(message, forks, message.id in shown), id=str(message.id))
            for message, forks in rows
        )
        places = [index for index, (message, _) in enumerate(rows) if message.id in shown]
        options.highlighted = places[-1] if places else None
        options.call_after_refresh(options.scroll_to_highlight)  # now it knows its height

    def _row(self, message: StoredMessage, forks: int, shown: bool) -> Content:
        version = f"‹ {message.sibling}/{message.siblings} › " if message.siblings > 1 else ""
        return Content.assemble(
            "  " * min(forks, _DEEPEST),
            ("● " if shown else "○ ", "$text-accent" if shown else "dim"),
            (f"{SPEAKERS[message.role]}  {version}", "bold"),
            one_line(message.text[:_LINE]) or "(empty)",
        )

    @Action("Go to this message", "enter", name="choose")
    @on(OptionList.OptionSelected)
    def action_go(self) -> None:
        chosen = self.query_one(OptionList).highlighted_option
        if chosen is not None and chosen.id is not None:
            self.dismiss(int(chosen.id))


class RankScreen(Dialog[list[int] | None]):
    """Returns the ids of the replies, the best first, or None when nothing was decided.

    replies: two or more. ranks: their current ranks, from 1, by id; the others follow.
    """

    BINDING_GROUP_TITLE = "Ranking replies"

    def __init__(self, replies: Sequence[StoredMessage], ranks: Mapping[int, int]) -> None:
        super().__init__()
        last = len(replies) + 1
        self._replies = sorted(replies, key=lambda reply: ranks.get(reply.id, last))

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Rank the replies, the best first", classes="title")
            yield PlainOptions()
            with VerticalScroll(can_focus=False):
                yield TextBody()
            yield Static("u moves a reply up, d down · Enter saves · Esc cancels", classes="hint")

    def on_mount(self) -> None:
        self._show(0)

    def _show(self, index: int) -> None:
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(
            Option(Content(f"{number}  {one_line(reply.text[:_LINE]) or '(empty)'}"))
            for number, reply in enumerate(self._replies, 1)
        )
        options.highlighted = index

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
