"""The list of earlier chats, filtered while one types.

The one invariant: only the newest filter's answer is shown, and the store is asked on a
thread, so that typing never waits for a search.
"""

import asyncio
import re
import time
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from chatapp.dialogue.store import StoreError
from chatapp.foreign import printable
from chatapp.tui.confirm import ConfirmScreen
from chatapp.tui.field import Field

if TYPE_CHECKING:
    from chatapp.dialogue.store import ChatSummary, Hit, Store

_MOST = 200
_FOUND = re.compile("\x02([^\x03]*)\x03")


def ago(then: float, now: float) -> str:
    """How long ago a moment was, in its largest unit."""
    seconds = max(0, int(now - then))
    for name, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if count := seconds // size:
            return f"{count} {name}{'s' * (count > 1)} ago"
    return "just now"


def marked(snippet: str) -> Content:
    """A snippet of the store, the words that were found standing out."""
    pieces = _FOUND.split(" ".join(snippet.split()))
    return Content.assemble(
        *((printable(piece), "bold" if place % 2 else "") for place, piece in enumerate(pieces))
    )


class ChatList(OptionList):
    """The chats that were found."""

    BINDING_GROUP_TITLE = "In the list of chats"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d,delete", "screen.delete", "Delete", tooltip="Delete the chat, after asking"),
        Binding("slash", "screen.filter", "Filter", show=False),
    ]

    def action_cursor_up(self) -> None:
        if self.highlighted:
            super().action_cursor_up()
        else:
            self.screen.query_one(Field).focus()


class HistoryScreen(ModalScreen[int | None]):
    """Gives the id of the chat to open, or None."""

    BINDING_GROUP_TITLE = "List of chats"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open"),
        Binding("down", "list", "Go to the list", show=False),
        Binding("escape,ctrl+o", "dismiss", "Close"),
    ]

    def __init__(self, store: "Store") -> None:
        super().__init__()
        self._store = store

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Chats", classes="title")
            yield Field(placeholder="Type to search titles and texts", compact=True)
            yield ChatList(markup=False, compact=True)
            yield Static(id="nothing", markup=False)
            yield Static("Enter opens · ↓ then d deletes · Esc closes", classes="hint")

    def on_mount(self) -> None:
        self._list = self.query_one(ChatList)
        self._find("")

    @on(Input.Changed)
    def _filter_changed(self, event: Input.Changed) -> None:
        self._find(event.value)

    @work(exclusive=True)
    async def _find(self, query: str) -> None:
        """Show the chats that match."""
        try:
            chats = await asyncio.to_thread(self._store.chats, limit=_MOST, matching=query)
            hits = await asyncio.to_thread(self._store.search, query, limit=_MOST)
        except StoreError as error:
            self._show_nothing(str(error))
            return
        snippets: dict[int, Hit] = {}
        for hit in hits:
            snippets.setdefault(hit.chat_id, hit)
        now = time.time()
        self._list.clear_options()
        self._list.add_options(
            Option(self._entry(chat, snippets.get(chat.id), now), id=str(chat.id)) for chat in chats
        )
        self._list.action_first()
        self._show_nothing(
            "" if chats else "No chat has these words." if query else "No chats yet."
        )

    def _show_nothing(self, words: str) -> None:
        nothing = self.query_one("#nothing", Static)
        nothing.update(words)
        nothing.display = bool(words)
        self._list.display = not words

    def _entry(self, chat: "ChatSummary", hit: "Hit | None", now: float) -> Content:
        title = printable(chat.title).replace("\n", " ") or "Without a title"
        facts = f"{chat.messages} messages · {printable(chat.model)} · {ago(chat.updated, now)}"
        lines = [Content(title), Content.styled(facts, "dim")]
        if hit is not None:
            lines.insert(1, marked(hit.snippet))
        return Content("\n").join(line for line in lines)

    @on(Input.Submitted)
    @on(OptionList.OptionSelected)
    def action_open(self) -> None:
        chosen = self._list.highlighted_option
        if chosen is not None and chosen.id is not None:
            self.dismiss(int(chosen.id))

    def action_list(self) -> None:
        self._list.focus()

    def action_filter(self) -> None:
        self.query_one(Field).focus()

    @work
    async def action_delete(self) -> None:
        chosen, place = self._list.highlighted_option, self._list.highlighted
        if chosen is None or chosen.id is None or place is None:
            return
        chat_id = int(chosen.id)
        try:
            title = self._store.chat(chat_id).title
            if await self.app.push_screen_wait(
                ConfirmScreen(f"Delete the chat “{title}”?", "Delete")
            ):
                self._store.delete_chat(chat_id)
                self._list.remove_option_at_index(place)
                if not self._list.option_count:
                    self._find(self.query_one(Field).value)
        except StoreError as error:
            self._show_nothing(str(error))
