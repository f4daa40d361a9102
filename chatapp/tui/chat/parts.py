"""The parts of the chat screen and its notices, including the list of chats."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, OptionList, Static

from chatapp.common.foreign import printable
from chatapp.common.settings import SettingsError, keep_settings
from chatapp.dialogue.chat import recent_inputs
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.database import StoreError
from chatapp.tui.conversation.conversation import Conversation
from chatapp.tui.events import Submitted
from chatapp.tui.inspector.panel import Inspector
from chatapp.tui.inspector.view import Target
from chatapp.tui.platform.actions import Acting, Action
from chatapp.tui.platform.runtime import store_errors
from chatapp.tui.screens.history import ChatChoice, FoundChats
from chatapp.tui.widgets.approval import Approval
from chatapp.tui.widgets.dialog import Field, Notice
from chatapp.tui.widgets.find import FindBar
from chatapp.tui.widgets.message import MessageView
from chatapp.tui.widgets.prompt import CommandCompletions, Complete, PromptInput, QueuedMessages
from chatapp.tui.widgets.status import KeyBar, StatusLine
from chatapp.tui.widgets.transcript import Transcript
from chatapp.tui.widgets.welcome import Welcome

FROM = 130
"""The least number of terminal columns with room for the list."""


class Sidebar(Acting, Vertical):
    """Earlier chats with search; the open one is highlighted."""

    BINDING_GROUP_TITLE = "List of chats beside the chat"

    @dataclass
    class Chosen(Message):
        """The user has chosen a chat."""

        choice: ChatChoice

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._chat_id: int | None = None

    def compose(self) -> ComposeResult:
        yield Static("Chats", classes="title")
        yield Field(placeholder="Type to search", compact=True)
        yield Notice(id="no-chats")
        yield FoundChats()

    def follow(self, chat_id: int | None) -> None:
        """Show the current list of chats, of which `chat_id` is open; None is a new one."""
        if chat_id != self._chat_id:
            self._chat_id = chat_id
            self.query_one(Field).clear()
        self.list_chats()

    @on(Input.Changed)
    def list_chats(self) -> None:
        """List the chats that the query finds, unless the list is hidden."""
        if self.display:
            self._find(self.query_one(Field).value)

    @work(exclusive=True, group="sidebar")
    async def _find(self, query: str) -> None:
        chats = self.query_one(FoundChats)
        problem = ""
        try:
            count = await chats.find(self._store, query)
        except StoreError as error:
            problem = str(error)
        else:
            ids = [option.id for option in chats.options]
            if query.strip():
                chats.highlighted = 0 if count else None
            else:
                is_listed = str(self._chat_id) in ids
                chats.highlighted = ids.index(str(self._chat_id)) if is_listed else None
            if not count:
                problem = "No chat has these words." if query.strip() else "No chats yet."
        self.query_one(Notice).say(problem)

    @on(Input.Submitted)
    @on(OptionList.OptionSelected)
    def _choose(self, event: Message) -> None:
        event.stop()
        if (choice := self.query_one(FoundChats).choice) is not None:
            self.post_message(self.Chosen(choice))

    @Action("Go to the list", "down", name="go_to_list")
    def action_list(self) -> None:
        self.query_one(FoundChats).focus()


class ChatWidgets:
    """The widgets of a conversation's screen.

    complete: returns the commands that the prompt's text may become. take_back: see `PromptInput`.
    kind: the widget of a message.
    """

    def __init__(
        self,
        conversation: Conversation,
        complete: Complete,
        take_back: Callable[[], bool],
        kind: type[MessageView],
    ) -> None:
        self._conversation = conversation
        self._store = conversation.chat.store
        self.sidebar = Sidebar(self._store)
        self._title = Static(id="title", markup=False)
        self.welcome = Welcome()
        self._problem = Notice(id="problem")
        self.refused = ""
        self.transcript = Transcript(kind)
        self.approval = Approval()
        self.find = FindBar()
        self.queued = QueuedMessages()
        self.attached = Notice(id="attached")
        self.completions = CommandCompletions()
        self.prompt = PromptInput(self.earlier_inputs, complete, take_back)
        self.status = StatusLine()

    def compose(self) -> ComposeResult:
        """The widgets, laid out."""
        yield self.sidebar
        with Vertical(id="heading"):
            yield self._title
        yield self.welcome
        yield self.transcript
        with Vertical(id="desk"):
            yield self._problem
            yield self.approval
            yield self.find
            yield self.queued
            yield self.attached
            yield self.completions
            yield self.prompt
            yield self.status
            yield KeyBar()

    @property
    def is_empty(self) -> bool:
        """Whether the chat has no message, so that suggestions are shown."""
        return self.welcome.display

    def show_welcome(self, empty: bool) -> None:
        """Show suggestions instead of the messages of an empty chat, or the messages."""
        self.welcome.display = empty
        self.transcript.display = not empty

    def show_title(self) -> None:
        """Show the chat's title, here and in the list of chats."""
        self.sidebar.follow(self._conversation.chat.id)
        with self.store_errors():
            self._title.update(printable(self._conversation.chat.title()).replace("\n", " "))

    def show_problem(self, problem: str, refused: str = "") -> None:
        """Show a problem above the prompt, until the next message is sent.

        refused: the text that is back in the prompt because of it, and goes with it.
        """
        self.refused = refused
        self._problem.say(problem)

    def follow_prompt(self) -> None:
        """Remove a problem once its text has left the prompt. A correction begins like the text."""
        if self.refused and self.prompt.text[:1] != self.refused[:1]:
            self.show_problem("")

    def show_markdown(self, markdown: bool) -> None:
        """Show the chat's replies as Markdown or as plain text, now and when reopened."""
        self.transcript.show_markdown(markdown)
        with self.store_errors():
            self._conversation.chat.show_markdown(markdown)

    def keep_setting(self, name: str, value: str) -> None:
        """Store a setting for the next start, unless nothing may be stored."""
        if self._store.is_kept:
            try:
                keep_settings({name: value})
            except SettingsError as error:
                self.prompt.notify(printable(str(error)), severity="warning", markup=False)

    async def take_back(self, submitted: Submitted | None, reason: str) -> None:
        """Give back a text that cannot be answered, with the reason."""
        await self.transcript.stop_waiting()
        self.show_welcome(not self.transcript.path)
        if submitted is not None:
            self.prompt.give_back(submitted.text, submitted.editing, submitted.in_place)
        self.show_problem(reason, "" if submitted is None else submitted.text)

    def withdraw_question(self) -> None:
        """Remove the question about a tool, and return the focus."""
        if self.approval.display:
            self.approval.withdraw()
            self.prompt.focus()

    @property
    def inspector(self) -> Inspector | None:
        """The inspector, while it is open."""
        return next(iter(self.transcript.screen.query(Inspector)), None)

    def look_again(self) -> None:
        """Update the inspector to the last message, which may have changed."""
        if self.inspector is not None:
            self.inspector.look_at(Target())

    def inform(self, words: str) -> None:
        """Show a short notice."""
        self.prompt.notify(printable(words), markup=False)

    def store_errors(self) -> AbstractContextManager[None]:
        """Show an error of the store instead of failing."""
        return store_errors(self.show_problem)

    def earlier_inputs(self) -> Sequence[str]:
        """The user's earlier inputs, oldest first."""
        try:
            return recent_inputs(self._store)
        except StoreError as error:
            self.show_problem(str(error))
            return []
