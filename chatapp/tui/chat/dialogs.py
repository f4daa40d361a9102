"""The screens over the chat: what each is opened with, and what becomes of its answer.

Keep: none that changes the chat is opened while a turn is under way, and an answer that comes when
one has begun meanwhile changes nothing.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from chatapp.common.paths import presets_path
from chatapp.dialogue.store.rows import Basis
from chatapp.tui.screens.branches import BranchScreen
from chatapp.tui.screens.compare import CompareScreen
from chatapp.tui.screens.history import HistoryScreen
from chatapp.tui.screens.library import LibraryScreen
from chatapp.tui.screens.models import ModelScreen
from chatapp.tui.screens.parameters import ParametersScreen
from chatapp.tui.widgets.message import MessageView

if TYPE_CHECKING:
    from chatapp.dialogue.store import Store
    from chatapp.dialogue.store.rows import StoredMessage
    from chatapp.tui.chat.inspecting import Inspecting
    from chatapp.tui.chat.model_switch import ModelSwitch
    from chatapp.tui.chat.navigation import Navigation
    from chatapp.tui.chat.parts import ChatWidgets
    from chatapp.tui.chat.turns import ChatTurns
    from chatapp.tui.conversation.conversation import Conversation
    from chatapp.tui.conversation.reply_scores import Scoring
    from chatapp.tui.screens.library import PromptChoice


@dataclass(eq=False)
class Dialogs:
    """Opens screens over a chat. What waits for an answer is to be called in a worker."""

    _conversation: "Conversation"
    _store: "Store"
    _widgets: "ChatWidgets"
    _turns: "ChatTurns"
    _models: "ModelSwitch"
    _navigation: "Navigation"
    _scoring: "Scoring"
    _inspecting: "Inspecting"

    async def list_chats(self) -> None:
        """Let the user choose a chat, and what becomes of others."""
        choice = await self._widgets.prompt.app.push_screen_wait(HistoryScreen(self._store))
        if choice is None:
            await self._navigation.leave_deleted()
        else:
            await self._navigation.open_chosen(choice)

    async def show_branches(self) -> None:
        """Let the user choose a message of another branch."""
        chat_id = self._conversation.chat.id
        if chat_id is None or self._turns.is_busy():
            return
        screen = BranchScreen(self._store, chat_id)
        message_id = await self._widgets.prompt.app.push_screen_wait(screen)
        if message_id is not None:
            await self._navigation.open_at(message_id)

    async def list_models(self) -> None:
        """Let the user choose another model."""
        if self._turns.is_busy():
            return
        screen = ModelScreen(self._conversation, self._widgets.status.model)
        name = await self._widgets.prompt.app.push_screen_wait(screen)
        if name is not None and not self._turns.is_busy():
            self._widgets.show_problem("")
            self._models.load_other(name)

    def set_parameters(self) -> None:
        """Let the user choose how replies are sampled."""
        from chatapp.prompting.template import TEMPLATES

        now = self._models.parameters()
        use = partial(self._models.use, now)
        screen = ParametersScreen(now, use, list(TEMPLATES), presets_path())
        self._widgets.prompt.app.push_screen(screen)

    async def list_prompts(self) -> None:
        """Let the user choose a persona or a prompt file."""
        if self._turns.is_busy():
            return
        screen = LibraryScreen(self._conversation, self._inspecting.target().draft)
        choice = await self._widgets.prompt.app.push_screen_wait(screen)
        if choice is not None:
            self.hold_with(choice)

    def hold_with(self, choice: "PromptChoice") -> None:
        """Use a persona or a prompt file, or with neither."""
        if self._turns.is_busy():
            return
        with self._widgets.store_errors():
            self._conversation.hold_with(choice.basis)
            self._scoring.renew()
            self._widgets.show_problem("")
            self._models.show()
            self._inspecting.look_again()
            kind = "prompt file" if choice.basis.prompt else "persona"
            used = (
                "no prompt file or persona" if choice.basis == Basis() else f"{kind} {choice.name}"
            )
            self._widgets.inform(f"The next message uses {used}.")

    async def compare(self, change: str) -> None:
        """Answer the focused message, or what stands in the prompt, in two ways.

        change: how the right one differs, as `Variant.changed` reads it.
        """
        session, widgets = self._conversation.session, self._widgets
        if session is None:
            widgets.inform("The model is not loaded yet.")
            return
        if self._turns.is_busy():
            return
        with widgets.store_errors():
            message = self._message_to_compare()
            screen = CompareScreen(
                self._conversation,
                session,
                self._store,
                self._scoring,
                widgets.earlier_inputs,
                message,
                change,
            )
            compared = await widgets.prompt.app.push_screen_wait(screen)
            if compared.chat_id is not None:
                await self._navigation.open(compared.chat_id)
            elif compared.text:
                widgets.prompt.give_back(compared.text)

    def _message_to_compare(self) -> "str | StoredMessage":
        """What is to be answered: a message, or a text taken from the prompt. StoreError."""
        prompt = self._widgets.prompt
        focused = prompt.screen.focused
        if isinstance(focused, MessageView):
            return self._navigation.asked(focused.message)
        if prompt.editing is not None:
            return ""
        text = prompt.text
        prompt.leave_edit()
        return text
