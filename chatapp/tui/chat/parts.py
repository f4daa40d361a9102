"""What the chat screen consists of, and what is said on it.

Keep: whatever text comes here, from the store, a model or an error, is shown as it is and never
parsed as markup.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from chatapp.dialogue.store import StoreError
from chatapp.foreign import printable
from chatapp.settings import SettingsError, keep_settings
from chatapp.tui.completions import Completions
from chatapp.tui.keybar import KeyBar
from chatapp.tui.permission import Approval
from chatapp.tui.prompt import Complete, Prompt
from chatapp.tui.sidebar import Sidebar
from chatapp.tui.status import StatusLine
from chatapp.tui.transcript import Transcript
from chatapp.tui.welcome import Welcome

if TYPE_CHECKING:
    from chatapp.dialogue.store import Store
    from chatapp.tui.conversation import Conversation


class ChatWidgets:
    """The widgets of the screen of a conversation.

    store: what the list of chats shows. complete: what the prompt asks for the commands that a
    text could become.
    """

    def __init__(self, conversation: "Conversation", store: "Store", complete: Complete) -> None:
        self._conversation = conversation
        self._store = store
        self.sidebar = Sidebar(store)
        self._title = Static(id="title", markup=False)
        self._welcome = Welcome()
        self._problem = Static(id="problem", markup=False)
        self.transcript = Transcript()
        self.approval = Approval()
        self.completions = Completions()
        self.prompt = Prompt(self.earlier_inputs, complete)
        self.status = StatusLine()

    def compose(self) -> ComposeResult:
        """The widgets, laid out."""
        yield self.sidebar
        with Vertical(id="heading"):
            yield self._title
        yield self._welcome
        yield self.transcript
        with Vertical(id="desk"):
            yield self._problem
            yield self.approval
            yield self.completions
            yield self.prompt
            yield self.status
            yield KeyBar()

    @property
    def is_empty(self) -> bool:
        """Whether the chat has no message, and things to try are shown in their place."""
        return self._welcome.display

    def show_welcome(self, empty: bool) -> None:
        """Show things to try in place of the messages of an empty chat, or the messages."""
        self._welcome.display = empty
        self.transcript.display = not empty

    def show_title(self) -> None:
        """Show what the chat is called, here and in the list of chats."""
        self.sidebar.follow(self._conversation.chat_id)
        with self.store_errors():
            self._title.update(printable(self._conversation.title()).replace("\n", " "))

    def show_problem(self, problem: str) -> None:
        """Say what is wrong above the prompt, until the next message is sent."""
        self._problem.update(printable(problem))
        self._problem.display = bool(problem)

    def show_markdown(self, markdown: bool) -> None:
        """Show the chat's replies as Markdown or as they are written, now and when reopened."""
        self.transcript.show_markdown(markdown)
        self.keep_markdown()

    def keep_markdown(self) -> None:
        """Have the replies shown as they are now when the chat is reopened."""
        with self.store_errors():
            self._conversation.keep_markdown(self.transcript.markdown)

    def keep_choices(self) -> None:
        """Have the replies drawn as they are now when the chat is reopened."""
        with self.store_errors():
            self._conversation.keep_choices()

    def keep_setting(self, name: str, value: str) -> None:
        """Have a setting at the next start as well, unless nothing is to be stored."""
        if self._store.is_kept:
            try:
                keep_settings({name: value})
            except SettingsError as error:
                self.prompt.notify(printable(str(error)), severity="warning", markup=False)

    def inform(self, words: str) -> None:
        """Say in passing what has been done, or why it cannot be."""
        self.prompt.notify(printable(words), markup=False)

    @contextmanager
    def store_errors(self) -> Iterator[None]:
        """Say what is wrong with the store instead of going down with it."""
        try:
            yield
        except StoreError as error:
            self.show_problem(str(error))

    def earlier_inputs(self) -> Sequence[str]:
        """What the user wrote before, oldest first."""
        try:
            return self._conversation.earlier_inputs()
        except StoreError as error:
            self.show_problem(str(error))
            return []
