"""Which chat is shown, which branch of it, and which message has the focus.

Keep: what is shown is the path to the chat's leaf as the store has it, and a text that waits to
be sent is not lost when another chat is opened.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chatapp.dialogue.store import Store
    from chatapp.dialogue.store.rows import Deleted, StoredMessage
    from chatapp.tui.chat.inspecting import Inspecting
    from chatapp.tui.chat.model_switch import ModelSwitch
    from chatapp.tui.chat.parts import ChatWidgets
    from chatapp.tui.chat.turns import ChatTurns
    from chatapp.tui.chat.verdicts import Verdicts
    from chatapp.tui.conversation.conversation import Conversation
    from chatapp.tui.conversation.reply_scores import Scoring
    from chatapp.tui.screens.history import ChatChoice


_DELETED = (
    "This chat was deleted in another window. What is on the screen is now saved as a new chat."
)


@dataclass(eq=False)
class Navigation:
    """Goes from one chat, branch or message of a conversation to another."""

    _conversation: "Conversation"
    _store: "Store"
    _widgets: "ChatWidgets"
    _turns: "ChatTurns"
    _models: "ModelSwitch"
    _verdicts: "Verdicts"
    _scoring: "Scoring"
    _inspecting: "Inspecting"
    _deleted: "list[Deleted]" = field(init=False, default_factory=list)

    async def open(self, chat_id: int | None) -> None:
        """Show a chat, or with None a new one."""
        await self._turns.take_back_waiting()
        widgets = self._widgets
        with widgets.store_errors():
            is_other = chat_id is not None and chat_id != self._conversation.chat.id
            self._conversation.open(chat_id)
            chat, path = self._conversation.chat, self._conversation.chat.messages
            self._turns.leave()
            self._verdicts.show()
            widgets.transcript.show_markdown(chat.markdown)
            self._scoring.follow(is_other=is_other)
            await widgets.transcript.show(path, chat.finish_reasons())
            widgets.show_welcome(not path)
            widgets.show_problem("")
            widgets.status.used = widgets.status.dropped = 0
            widgets.status.speed = 0.0
            self._models.show()
            widgets.prompt.focus()
            widgets.show_title()
            self._inspecting.look_again()
            if is_other and chat_id is not None:
                self._models.follow(self._store.chat(chat_id).model)

    async def open_at(self, message_id: int) -> None:
        """Show the branch of a message, and the message."""
        with self._widgets.store_errors():
            message = self._store.message(message_id)
            if message_id not in [above.id for above in self._store.path(message.chat_id)]:
                self._store.set_leaf(message.chat_id, self._store.latest_leaf(message_id))
            await self.open(message.chat_id)
            await self._widgets.transcript.reveal(message_id)

    async def open_chosen(self, choice: "ChatChoice") -> None:
        """Show a chat that was chosen from a list, at what was found in it."""
        if choice.message_id is None:
            await self.open(choice.chat_id)
        else:
            await self.open_at(choice.message_id)

    def asked(self, message: "StoredMessage") -> "StoredMessage":
        """The user's message that a reply answers, or the message itself. Raises StoreError."""
        if message.role == "assistant" and message.parent_id is not None:
            return self._store.message(message.parent_id)
        return message

    async def leave_deleted(self) -> None:
        """Begin a new chat when the one that is shown has been deleted."""
        with self._widgets.store_errors():
            if self._conversation.chat.is_deleted():
                await self.open(None)
        self._widgets.show_title()

    async def go_on_anew(self) -> None:
        """Go on in a new chat when the one that is shown has been deleted in another window."""
        prompt = self._widgets.prompt
        with self._widgets.store_errors():
            chat, session = self._conversation.chat, self._conversation.session
            if session is not None and chat.is_deleted():
                await self.open(chat.store_anew(session.template.name, session.model.name))
                text = prompt.text
                prompt.leave_edit()
                prompt.give_back(text)
                self._widgets.show_problem(_DELETED)

    async def show_sibling(self, message: "StoredMessage", step: int) -> None:
        """Show the version of a message `step` places after it."""
        if self._turns.is_busy():
            return
        prompt, transcript = self._widgets.prompt, self._widgets.transcript
        writing = prompt.screen.focused is prompt
        with self._widgets.store_errors():
            sibling = self._conversation.chat.go_to_sibling(message, step)
            if sibling is not None:
                await self.open(sibling.chat_id)
                view = transcript.view(sibling.id)
                if view is not None and not writing:
                    view.focus()

    async def delete(self, message: "StoredMessage") -> None:
        """Delete a message with all that follow it."""
        if self._turns.is_busy():
            return
        with self._widgets.store_errors():
            deleted = self._store.delete_message(message.id)
            self._deleted.append(deleted)
            await self.open(deleted.chat_id)
            others = deleted.count - 1
            with_others = f" with the {others} that followed" if others else ""
            self._widgets.inform(f"Message deleted{with_others}. u or /undo brings it back.")
            self.focus_last_message()

    async def undelete(self) -> None:
        """Bring back what was deleted last."""
        if not self._deleted:
            self._widgets.inform("No message has been deleted.")
        elif not self._turns.is_busy():
            with self._widgets.store_errors():
                deleted = self._deleted[-1]
                self._store.restore_messages(deleted)
                self._deleted.pop()
                await self.open(deleted.chat_id)
                self.focus_last_message()

    async def show_version(self, step: int) -> None:
        """Show the version of the last message `step` places after the one that is shown."""
        path = self._widgets.transcript.path
        if path and path[-1].siblings > 1:
            await self.show_sibling(path[-1], step)

    async def focus_step(self, message: "StoredMessage", step: int) -> None:
        """Focus the message `step` places on; below the last one is the prompt."""
        if not await self._widgets.transcript.focus_step(message, step) and step > 0:
            self._widgets.prompt.focus()

    def focus_last_message(self) -> None:
        """Go from the prompt to the messages: to the marked one, or else to the last."""
        transcript = self._widgets.transcript
        if views := transcript.views:
            (transcript.marked or views[-1]).focus()

    def scroll_page(self, step: int) -> None:
        """Scroll the messages a page up or down."""
        transcript = self._widgets.transcript
        scroll = transcript.scroll_page_up if step < 0 else transcript.scroll_page_down
        scroll(animate=False)
