"""The list of chats beside the chat, searched as one types, where there is room for it.

Keep: while it cannot be seen it asks the store for nothing.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, OptionList, Static

from chatapp.dialogue.store import StoreError
from chatapp.foreign import printable
from chatapp.tui.field import Field
from chatapp.tui.history import ChatChoice, FoundChats

if TYPE_CHECKING:
    from chatapp.dialogue.store import Store

FROM = 130
"""Columns of the terminal from which on there is room for it."""


class Sidebar(Vertical):
    """Earlier chats, the one that is open highlighted."""

    BINDING_GROUP_TITLE = "List of chats beside the chat"
    BINDINGS = [Binding("down", "list", "Go to the list", show=False)]  # noqa: RUF012

    @dataclass
    class Chosen(Message):
        """The user wants to go on with a chat."""

        choice: ChatChoice

    def __init__(self, store: "Store") -> None:
        super().__init__()
        self._store = store
        self._chat_id: int | None = None

    def compose(self) -> ComposeResult:
        yield Static("Chats", classes="title")
        yield Field(placeholder="Type to search", compact=True)
        yield Static(id="no-chats", markup=False)
        yield FoundChats()

    def on_show(self) -> None:
        self._find()

    def follow(self, chat_id: int | None) -> None:
        """Show the chats as they are now, of which `chat_id` is open; None is a new one."""
        if chat_id != self._chat_id:
            self._chat_id = chat_id
            self.query_one(Field).clear()
        self._find()

    @on(Input.Changed)
    def _find(self) -> None:
        if self.display:
            self._list_chats(self.query_one(Field).value)

    @work(exclusive=True, group="sidebar")
    async def _list_chats(self, query: str) -> None:
        chats = self.query_one(FoundChats)
        problem = ""
        try:
            found = await chats.find(self._store, query)
        except StoreError as error:
            problem = str(error)
        else:
            ids = [option.id for option in chats.options]
            if query.strip():
                chats.highlighted = 0 if found else None
            else:
                is_listed = str(self._chat_id) in ids
                chats.highlighted = ids.index(str(self._chat_id)) if is_listed else None
            if not found:
                problem = "No chat has these words." if query.strip() else "No chats yet."
        nothing = self.query_one("#no-chats", Static)
        nothing.update(printable(problem))
        nothing.display = bool(problem)

    @on(Input.Submitted)
    @on(OptionList.OptionSelected)
    def _choose(self, event: Message) -> None:
        event.stop()
        if (choice := self.query_one(FoundChats).choice) is not None:
            self.post_message(self.Chosen(choice))

    def action_list(self) -> None:
        self.query_one(FoundChats).focus()
