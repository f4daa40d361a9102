"""Actions on a message: answer again, continue, correct, copy, delete.

Invariant: verdicts are shown as the store has them.
"""

from typing import TYPE_CHECKING

from textual import work
from textual.screen import Screen

from chatapp.dialogue.store.database import StoreError
from chatapp.engine.errors import ModelError
from chatapp.engine.models.resolving import local_folder
from chatapp.tui.platform import programs
from chatapp.tui.screens.compare import CompareScreen
from chatapp.tui.screens.ranking import RankScreen
from chatapp.tui.screens.sources import SourceScreen
from chatapp.tui.screens.teaching import TraceScreen, trace_command
from chatapp.tui.widgets.message import MessageView

if TYPE_CHECKING:
    from chatapp.dialogue.store.rows import Deleted, StoredMessage
    from chatapp.tui.chat.controls import ChatControls


class MessageActions(Screen[None]):
    """The actions of `MessageView`'s keys, each with its message."""

    controls: "ChatControls"

    def __init__(self) -> None:
        super().__init__()
        self._code_blocks = programs.CodeBlocks()
        self._deleted: list[Deleted] = []

    # Other replies, and longer ones

    def action_regenerate(self, message: "StoredMessage") -> None:
        id = message.id
        with self.controls.widgets.store_errors():
            if self._is_same_label(message):
                self.controls.widgets.inform(
                    "A label is scored, not sampled: another reply would be the same."
                )
                return
        self.controls.begin(lambda session, cancel: [session.regenerate(id, cancel)])

    def _is_same_label(self, reply: "StoredMessage") -> bool:
        """Whether the same model and prompt file would choose among labels again."""
        session = self.controls.conversation.session
        store = self.controls.conversation.chat.store
        conditions = store.conditions(reply.chat_id).get(reply.id)
        if session is None or conditions is None or not conditions.is_label:
            return False
        now = (session.model.name, self.controls.conversation.chat.basis.prompt)
        return any(
            (generation.model, generation.template) == now
            for generation in store.generations(reply.chat_id)
            if generation.message_id == reply.id
        )

    def action_continue(self, message: "StoredMessage") -> None:
        id = message.id
        self.controls.begin(lambda session, cancel: [session.continue_reply(id, cancel)])

    def action_edit(self, message: "StoredMessage") -> None:
        with self.controls.widgets.store_errors():
            message = self._user_message(message)
            self._edit(message, message.text)

    def action_edit_reply(self, reply: "StoredMessage") -> None:
        """Let the user edit the text of a reply itself."""
        if not self.controls.is_busy():
            prompt = self.controls.widgets.prompt
            prompt.edit_message(reply, reply.text, in_place=True)
            prompt.focus()

    async def keep_edit(self, reply: "StoredMessage", text: str) -> None:
        """Store the new text of a reply, which is then marked as edited."""
        if self.controls.is_busy():
            self.controls.widgets.prompt.give_back(text, reply, in_place=True)
            return
        with self.controls.widgets.store_errors():
            self.controls.conversation.chat.store.edit_reply(reply.id, text)
            await self.controls.open_at(reply.id)

    async def action_fork(self, message: "StoredMessage") -> None:
        await self.controls.fork(message.id)

    def action_times(self) -> None:
        """Show when messages were written, or not."""
        transcript = self.controls.widgets.transcript
        transcript.show_times(not transcript.times)

    def _edit(self, message: "StoredMessage", text: str) -> None:
        prompt = self.controls.widgets.prompt
        prompt.edit_message(message, text)
        prompt.focus()

    @work
    async def action_compare(self, change: str = "") -> None:
        """Answer the focused message, or the text in the prompt, in two ways.

        change: of the right one, as `Variant.changed` reads it.
        """
        conversation, widgets = self.controls.conversation, self.controls.widgets
        if conversation.session is None:
            widgets.inform("The model is not loaded yet.")
            return
        if self.controls.is_busy():
            return
        with widgets.store_errors():
            message = self._message_to_compare()
            screen = CompareScreen(conversation, message, change)
            compared = await self.app.push_screen_wait(screen)
            if compared.chat_id is not None:
                # The chat goes on with the model that it had, not with the other side's.
                conversation.chat.store.set_model(compared.chat_id, widgets.status.model)
                await self.controls.open(compared.chat_id)
            elif compared.text:
                widgets.prompt.give_back(compared.text)

    def _message_to_compare(self) -> "str | StoredMessage":
        """The message to answer, or a text taken from the prompt. Raises StoreError."""
        prompt = self.controls.widgets.prompt
        if isinstance(self.focused, MessageView):
            return self._user_message(self.focused.message)
        if prompt.editing is not None:
            return ""
        text = prompt.text
        prompt.leave_edit()
        return text

    def _user_message(self, message: "StoredMessage") -> "StoredMessage":
        """The user's message that a reply answers, or the message itself. Raises StoreError."""
        if message.role == "assistant" and message.parent_id is not None:
            return self.controls.conversation.chat.store.message(message.parent_id)
        return message

    # Choosing a message and its version

    async def action_step(self, message: "StoredMessage", step: int) -> None:
        """Focus the message `step` places on; below the last one is the prompt."""
        widgets = self.controls.widgets
        if not await widgets.transcript.focus_step(message, step) and step > 0:
            widgets.prompt.focus()

    async def action_show_version(self, step: int) -> None:
        """Show the version of the last message `step` places after the current one."""
        path = self.controls.widgets.transcript.path
        if path and path[-1].siblings > 1:
            await self.action_sibling(path[-1], step)

    async def action_sibling(self, message: "StoredMessage", step: int) -> None:
        """Show the version of a message `step` places after it."""
        if self.controls.is_busy():
            return
        widgets = self.controls.widgets
        writing = self.focused is widgets.prompt
        with widgets.store_errors():
            sibling = self.controls.conversation.chat.go_to_sibling(message, step)
            if sibling is not None:
                await self.controls.open(sibling.chat_id)
                view = widgets.transcript.view(sibling.id)
                if view is not None and not writing:
                    view.focus()

    def action_focus_last_message(self) -> None:
        """Move from the prompt to the messages: to the marked one, or else to the last."""
        transcript = self.controls.widgets.transcript
        if views := transcript.views:
            (transcript.marked or views[-1]).focus()

    # Its text

    def action_trace(self, reply: "StoredMessage") -> None:
        """Show which training text of its model a reply is from."""
        store, widgets = self.controls.conversation.chat.store, self.controls.widgets
        try:
            models = {one.message_id: one.model for one in store.generations(reply.chat_id)}
            run = local_folder(models[reply.id]) if reply.id in models else None
        except (StoreError, ModelError) as error:
            widgets.show_problem(str(error))
            return
        if run is None:
            widgets.inform("No model on this machine wrote this reply.")
            return
        command = trace_command(run, reply.text)
        self.app.push_screen(TraceScreen(self.controls.conversation, command))

    def action_sources(self, message: "StoredMessage") -> None:
        self.app.push_screen(SourceScreen(message.sources))

    def action_copy(self, message: "StoredMessage") -> None:
        self.app.copy_to_clipboard(message.text)
        self.controls.widgets.inform("Copied to the clipboard.")

    def action_copy_code(self, message: "StoredMessage") -> None:
        code, which = self._code_blocks.next_of(message.id, message.text)
        self.app.copy_to_clipboard(code)
        self.controls.widgets.inform(f"{which} copied to the clipboard.")

    # Deleting

    async def action_delete(self, message: "StoredMessage") -> None:
        """Delete the message with all that follow it."""
        if self.controls.is_busy():
            return
        with self.controls.widgets.store_errors():
            deleted = self.controls.conversation.chat.store.delete_message(message.id)
            self._deleted.append(deleted)
            await self.controls.open(deleted.chat_id)
            others = deleted.count - 1
            with_others = f" with the {others} that followed" if others else ""
            words = f"Message deleted{with_others}. u or /undo brings it back."
            self.controls.widgets.inform(words)
            self.action_focus_last_message()

    async def action_undelete(self) -> None:
        """Restore the last deletion."""
        if not self._deleted:
            self.controls.widgets.inform("No message has been deleted.")
        elif not self.controls.is_busy():
            with self.controls.widgets.store_errors():
                self.controls.conversation.chat.store.restore_messages(self._deleted[-1])
                await self.controls.open(self._deleted.pop().chat_id)
                self.app.clear_notifications()  # of the deletion
                self.action_focus_last_message()

    # Verdicts

    def action_rate(self, reply: "StoredMessage", thumb: int) -> None:
        """Rate a reply good (1) or bad (-1); the same rating again removes it."""
        store = self.controls.conversation.chat.store
        with self.controls.widgets.store_errors():
            feedback = store.feedback(reply.chat_id).get(reply.id)
            is_repeated = feedback is not None and feedback.thumb == thumb
            store.set_thumb(reply.id, 0 if is_repeated else thumb)
            self.controls.show_feedback()

    def action_correct(self, reply: "StoredMessage") -> None:
        """Let the user write the correct reply."""
        store = self.controls.conversation.chat.store
        with self.controls.widgets.store_errors():
            feedback = store.feedback(reply.chat_id).get(reply.id)
            correction = feedback.correction if feedback is not None else None
            self._edit(reply, correction or reply.text)

    def keep_correction(self, reply: "StoredMessage", text: str) -> None:
        """Store a correction; an empty or unchanged text removes it."""
        store = self.controls.conversation.chat.store
        try:
            stored = store.message(reply.id)
            is_withdrawn = text.strip() in ("", stored.text.strip())
            store.set_correction(stored.id, None if is_withdrawn else text)
        except StoreError as error:
            self.controls.widgets.prompt.give_back(text, reply)
            self.controls.widgets.show_problem(str(error))
        else:
            self.controls.show_feedback()

    @work
    async def action_rank(self, reply: "StoredMessage") -> None:
        """Let the user rank a reply and its siblings."""
        store = self.controls.conversation.chat.store
        with self.controls.widgets.store_errors():
            siblings = store.siblings(reply.id)
            feedback = store.feedback(reply.chat_id)
            ranks = {id: verdict.rank for id, verdict in feedback.items() if verdict.rank}
            screen = RankScreen(siblings, ranks)
            ranking = await self.app.push_screen_wait(screen)
            if ranking is not None:
                store.set_ranking(ranking)
                self.controls.show_feedback()
