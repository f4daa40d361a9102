"""The program in the terminal: its store, its look, and how it ends.

The one invariant: nothing imported here, directly or not, is heavy. The model and its
library are imported by the thread that loads them, after the first frame.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.app import App, InvalidThemeError
from textual.binding import Binding, BindingType

from chatapp.dialogue.store import Store, StoreError
from chatapp.foreign import printable, without_surrogates
from chatapp.paths import database_path
from chatapp.settings import Settings
from chatapp.tui.chat import ChatScreen
from chatapp.tui.theme import CALM, FEW_COLORS

if TYPE_CHECKING:
    from textual.screen import Screen

    from chatapp.engine.model import LanguageModel

_PATIENCE = 0.3
"""Seconds a running turn gets to store its reply when the user quits."""


class ChatApp(App[int]):
    """The chat.

    load: gives the model; by default the one of the settings. store: where the chats are;
    by default the user's own, opened here (StoreError). chat_id: the chat to go on with.
    """

    TITLE = "chatapp"
    CSS_PATH = "chatapp.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS: ClassVar[list[tuple[int, str]] | None] = [(0, "-narrow"), (80, "-wide")]
    VERTICAL_BREAKPOINTS: ClassVar[list[tuple[int, str]] | None] = [(0, "-low"), (24, "-high")]
    BINDING_GROUP_TITLE = "Everywhere"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "Quit", tooltip="Leave the program", priority=True),
    ]

    def __init__(
        self,
        settings: Settings,
        *,
        load: "Callable[[], LanguageModel] | None" = None,
        store: Store | None = None,
        chat_id: int | None = None,
    ) -> None:
        no_color = "NO_COLOR" in os.environ
        super().__init__(ansi_color=True if no_color else None)
        self._settings = settings
        self._load = load or self._load_by_name
        self.store = store or Store(database_path())
        self._chat_id = chat_id
        self._few_colors = no_color or self.console.color_system not in ("256", "truecolor")

    def _load_by_name(self) -> "LanguageModel":
        from chatapp.engine.load import load_model

        return load_model(self._settings.model)

    def get_default_screen(self) -> "Screen[None]":
        self._chat = ChatScreen(self._settings, self.store, self._load, self._chat_id)
        return self._chat

    def on_mount(self) -> None:
        self.register_theme(CALM)
        try:
            self.theme = FEW_COLORS if self._few_colors else self._settings.theme
        except InvalidThemeError:
            name = printable(self._settings.theme)
            self.notify(f"There is no theme {name!r}.", severity="warning", markup=False)

    def copy_to_clipboard(self, text: str) -> None:
        # The clipboard takes UTF-8, which has no lone surrogates.
        super().copy_to_clipboard(without_surrogates(text))

    @property
    def has_running_threads(self) -> bool:
        """Whether something still loads or generates."""
        return self._chat.conversation.has_running_threads

    async def action_quit(self) -> None:
        await asyncio.to_thread(self._chat.conversation.close, _PATIENCE)
        self.exit(0)


def run(settings: Settings, chat_id: int | None = None) -> int:
    """Show the chat until the user leaves; returns the exit status."""
    try:
        app = ChatApp(settings, chat_id=chat_id)
    except StoreError as error:
        print(f"chatapp: {printable(str(error))}", file=sys.stderr)
        return 1
    status = app.run() or app.return_code or 0
    app.store.close()
    if app.has_running_threads:
        # A thread inside the numerical library cannot be interrupted, and Python would crash
        # when it comes back to an interpreter that is being taken apart. Everything is stored.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
