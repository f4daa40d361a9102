"""The list of earlier chats with search, and the actions on them."""

import asyncio
import re
import time
from contextlib import suppress
from typing import NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.events import DescendantFocus
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from chatapp.common.foreign import printable
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.database import StoreError
from chatapp.dialogue.store.rows import ChatSummary, Hit
from chatapp.tui.platform.actions import Acting, Action
from chatapp.tui.platform.runtime import store_errors
from chatapp.tui.widgets.dialog import Dialog, Field, Notice, PlainOptions

_MOST = 200
_MATCH = re.compile("\x02([^\x02\x03]*)\x03")
_HINT = "Enter opens · ↓ to rename, archive, delete · Ctrl+T archived · Esc closes"
_IN_LIST = "n renames · a archives · d deletes · u undoes · / searches · Esc closes"
_DELETED = "The chat is deleted · u brings it back, until you close this · Esc closes"
_RENAMING = "Enter renames · Esc cancels"


def ago(then: float, now: float) -> str:
    """The time since a moment, in its largest unit."""
    seconds = max(0, int(now - then))
    for name, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if count := seconds // size:
            return f"{count} {name}{'s' * (count > 1)} ago"
    return "just now"


def highlighted_words(snippet: str) -> Content:
    """A snippet of the store, with the matches highlighted."""
    pieces = _MATCH.split(" ".join(snippet.split()))
    return Content.assemble(
        *(
            (printable(piece), "bold $text-accent" if index % 2 else "")
            for index, piece in enumerate(pieces)
        )
    )


class ChatChoice(NamedTuple):
    """The chat to open, and the search result in it, if any."""

    chat_id: int
    message_id: int | None


class FoundChats(PlainOptions):
    """The matching chats, each with the time of its last change, and its model."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._hits: dict[int, Hit] = {}

    async def find(self, store: Store, query: str, archive: bool = False) -> int:
        """Show the matching chats, and return their number; a search includes the archive.

        archive: whether to show only archived chats. Raises StoreError.
        """
        archived = archive or (None if query.strip() else False)
        chats = await asyncio.to_thread(store.chats, limit=_MOST, matching=query, archived=archived)
        hits = await asyncio.to_thread(store.search, query, limit=_MOST)
        self._hits = {}
        for hit in hits:
            self._hits.setdefault(hit.chat_id, hit)
        now = time.time()
        self.clear_options()
        self.add_options(
            Option(self._entry(chat, self._hits.get(chat.id), now), id=str(chat.id))
            for chat in chats
        )
        return len(chats)

    def _entry(self, chat: ChatSummary, hit: Hit | None, now: float) -> Content:
        title = printable(chat.title).replace("\n", " ") or "Untitled"
        facts = " · ".join(fact for fact in self._facts(chat, now) if fact)
        lines = [Content(title), Content.styled(facts, "$text-muted")]
        if hit is not None:
            lines.insert(1, highlighted_words(hit.snippet))
        return Content("\n").join(lines)

    def _facts(self, chat: ChatSummary, now: float) -> list[str]:
        """Facts of a chat, the most important first."""
        return [ago(chat.updated, now), printable(chat.tags), printable(chat.model)]

    @property
    def choice(self) -> ChatChoice | None:
        """The highlighted chat."""
        option = self.highlighted_option
        if option is None or option.id is None:
            return None
        hit = self._hits.get(int(option.id))
        return ChatChoice(int(option.id), hit.message_id if hit is not None else None)

    def action_cursor_up(self) -> None:
        if self.highlighted:
            super().action_cursor_up()
        else:
            self.query_ancestor(Vertical).query_one(Field).focus()


class ChatList(Acting, FoundChats):
    """The matching chats, and the actions on them."""

    BINDING_GROUP_TITLE = "In the list of chats"
    ALSO = (
        Action("Rename the chat", "n", call="screen.rename", name="rename_chat"),
        Action(
            "Archive the chat, or bring it back", "a", call="screen.archive", name="archive_chat"
        ),
        Action("Delete the chat", "d,delete", call="screen.delete", name="delete_chat"),
        Action("Bring back the chat deleted last", "u", call="screen.restore", name="restore_chat"),
        Action("Filter", "slash", call="screen.filter", name="filter_chats"),
    )

    def _facts(self, chat: ChatSummary, now: float) -> list[str]:
        count = "1 message" if chat.messages == 1 else f"{chat.messages} messages"
        known = printable(chat.tags), printable(chat.model), ago(chat.updated, now)
        return [count, *known, "archived" * chat.archived]


class HistoryScreen(Dialog[ChatChoice | None]):
    """Returns the chat to open, or None."""

    BINDING_GROUP_TITLE = "List of chats"

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._archive = False
        self._renamed: int | None = None
        self._binned: list[int] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Chats", classes="title")
            yield Field(
                placeholder="Search titles and messages, or #tag", id="filter", compact=True
            )
            yield Field(id="title-field", compact=True)
            yield Notice(id="nothing")
            yield ChatList()
            yield Static(_HINT, classes="hint")

    def on_mount(self) -> None:
        self._list = self.query_one(ChatList)
        self._title_field = self.query_one("#title-field", Field)
        self._title_field.display = False
        self._empty_bin()
        self._find("")

    @work
    async def _empty_bin(self) -> None:
        with suppress(StoreError):  # listing the chats will report it
            await asyncio.to_thread(self._store.empty_bin)

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        if self._renamed is None:
            hint = _IN_LIST if event.widget is self._list else _HINT
            self.query_one(".hint", Static).update(hint)

    @on(Input.Changed, "#filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        self._find(event.value)

    @work(exclusive=True)
    async def _find(self, query: str, index: int = 0) -> None:
        try:
            count = await self._list.find(self._store, query, self._archive)
        except StoreError as error:
            self._show_nothing(str(error))
            return
        self._list.highlighted = min(index, count - 1) if count else None
        nothing = "The archive is empty." if self._archive else "No chats yet."
        self._show_nothing("" if count else "No chat has these words." if query else nothing)
        self.query_one(".title", Static).update("Archived chats" if self._archive else "Chats")

    def _show_nothing(self, words: str) -> None:
        self.query_one(Notice).say(words)

    @Action("Open", "enter", name="choose")
    @on(Input.Submitted, "#filter")
    @on(OptionList.OptionSelected)
    def action_open(self) -> None:
        if self._list.choice is not None:
            self.dismiss(self._list.choice)

    def _chosen(self) -> int | None:
        """The highlighted chat."""
        return self._list.choice.chat_id if self._list.choice is not None else None

    @Action("Close", "escape", name="close")
    @Action("Close", "ctrl+o", name="chats")
    def action_leave(self) -> None:
        if self._renamed is not None:
            self._leave_rename()
        else:
            self.dismiss(None)

    @Action("Go to the list", "down", name="go_to_list")
    def action_list(self) -> None:
        if self._renamed is None:
            self._list.focus()
            self._list.action_cursor_down()

    def action_filter(self) -> None:
        self.query_one("#filter", Field).focus()

    @Action("Switch between the chats and the archive", "ctrl+t", name="archived_chats")
    def action_other_list(self) -> None:
        self._archive = not self._archive
        self._find_again(0)

    def _find_again(self, index: int | None = None) -> None:
        if index is None:
            index = self._list.highlighted or 0
        self._find(self.query_one("#filter", Field).value, index)

    # Actions on the chosen chat

    def action_rename(self) -> None:
        if (chat_id := self._chosen()) is None:
            return
        with store_errors(self._show_nothing):
            self._title_field.value = self._store.chat(chat_id).title.replace("\n", " ")
            self._renamed = chat_id
            self._title_field.display = True
            self._title_field.focus()
            self.query_one(".hint", Static).update(_RENAMING)

    @on(Input.Submitted, "#title-field")
    def _rename(self, event: Input.Submitted) -> None:
        title = event.value.strip()
        if self._renamed is not None and title:
            with store_errors(self._show_nothing):
                self._store.rename_chat(self._renamed, title)
                self._leave_rename()
                self._find_again()

    def _leave_rename(self) -> None:
        self._renamed = None
        self._list.focus()
        self._title_field.display = False
        self.query_one(".hint", Static).update(_HINT)

    def action_archive(self) -> None:
        if (chat_id := self._chosen()) is not None:
            with store_errors(self._show_nothing):
                self._store.set_archived(chat_id, not self._store.chat(chat_id).archived)
                self._find_again()

    def action_delete(self) -> None:
        if (chat_id := self._chosen()) is not None:
            with store_errors(self._show_nothing):
                self._store.bin_chat(chat_id)
                self._binned.append(chat_id)
                self.query_one(".hint", Static).update(_DELETED)
                self._find_again()

    def action_restore(self) -> None:
        if self._binned:
            with store_errors(self._show_nothing):
                self._store.restore_chat(self._binned[-1])
                self._binned.pop()
                self._find_again(0)
