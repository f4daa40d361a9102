"""All branches of a chat, to move to any of them.

Invariant: a row is one message; rows are indented only below a message with several answers or
versions, so a long chat stays narrow.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from chatapp.common.foreign import printable
from chatapp.dialogue.store.database import StoreError
from chatapp.tui.platform.actions import Action
from chatapp.tui.widgets.dialog import Dialog, Options
from chatapp.tui.widgets.message import SPEAKERS

if TYPE_CHECKING:
    from chatapp.dialogue.store import Store
    from chatapp.dialogue.store.rows import StoredMessage

_DEEPEST = 12
_LINE = 200


def in_order(messages: "Sequence[StoredMessage]") -> "Iterator[tuple[StoredMessage, int]]":
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

    def __init__(self, store: "Store", chat_id: int) -> None:
        super().__init__()
        self._store = store
        self._chat_id = chat_id

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Branches", classes="title")
            yield Options()
            yield Static(id="nothing", markup=False)
            yield Static("● is shown now · Enter goes to a message · Esc closes", classes="hint")

    def on_mount(self) -> None:
        self.query_one("#nothing").display = False
        self._fill()

    @work
    async def _fill(self) -> None:
        try:
            messages = await asyncio.to_thread(self._store.tree, self._chat_id)
            path = await asyncio.to_thread(self._store.path, self._chat_id)
        except StoreError as error:
            nothing = self.query_one("#nothing", Static)
            nothing.update(printable(str(error)))
            nothing.display = True
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

    def _row(self, message: "StoredMessage", forks: int, shown: bool) -> Content:
        version = f"‹ {message.sibling}/{message.siblings} › " if message.siblings > 1 else ""
        text = " ".join(printable(message.text[:_LINE]).split()) or "(empty)"
        return Content.assemble(
            "  " * min(forks, _DEEPEST),
            ("● " if shown else "○ ", "$text-accent" if shown else "dim"),
            (f"{SPEAKERS[message.role]}  {version}", "bold"),
            text,
        )

    @Action("Go to this message", "enter", name="choose")
    @on(OptionList.OptionSelected)
    def action_go(self) -> None:
        chosen = self.query_one(OptionList).highlighted_option
        if chosen is not None and chosen.id is not None:
            self.dismiss(int(chosen.id))
