"""Actions on a message: answer again, continue, correct, copy, delete; and what they leave."""

from typing import cast

from textual import work
from textual.actions import parse
from textual.binding import Binding
from textual.events import Key

from chatapp.dialogue.store.database import StoreError
from chatapp.dialogue.store.rows import Deleted, StoredMessage
from chatapp.engine.errors import ModelError
from chatapp.engine.models.resolving import local_folder
from chatapp.tui.chat.actions import ChatActions
from chatapp.tui.platform.actions import Acting, Action
from chatapp.tui.platform.programs import CodeBlocks, code_blocks
from chatapp.tui.platform.textual_internals import bindings_for
from chatapp.tui.screens.branches import RankScreen
from chatapp.tui.screens.compare import CompareScreen
from chatapp.tui.screens.teaching import TraceScreen, trace_command
from chatapp.tui.screens.texts import SourceScreen
from chatapp.tui.widgets.message import MessageView

_VERSIONS = Binding.Group("Versions", compact=True)
_VERDICT = Binding.Group("Good or bad", compact=True)


def _no_reply(view: "ChatMessage") -> str:
    is_reply = view.message.role == "assistant"
    return "" if is_reply else "This works on replies only; this message is yours."


def _no_editable_reply(view: "ChatMessage") -> str:
    has_calls = bool(view.message.calls)
    words = "A reply with calls of tools cannot be edited; w corrects it."
    return _no_reply(view) or words * has_calls


def _no_version(view: "ChatMessage") -> str:
    is_alone = view.message.siblings < 2
    return "There is only one version; r on a reply makes another." if is_alone else ""


def _no_code(view: "ChatMessage") -> str:
    return "" if code_blocks(view.message.text) else "There is no code block in this message."


def _no_sources(view: "ChatMessage") -> str:
    words = "No passage of a document was looked up for this message."
    return "" if view.message.sources else words


def _no_parts(view: "ChatMessage") -> str:
    words = "This message has no thoughts, calls or passages."
    return "" if view.has_parts or view.message.sources else words


class ChatMessage(Acting, MessageView):
    """A message of the chat with the user's actions on it."""

    BINDING_GROUP_TITLE = "On a message"
    ALSO = (
        Action("Show or hide when messages were written", "t", call="screen.times", name="times"),
        Action("Bring back what was deleted last", "u", call="screen.undelete", name="undelete"),
    )

    @property
    def _chat(self) -> "MessageActions":
        return cast(MessageActions, self.screen)

    def on_key(self, event: Key) -> None:
        # Textual does not explain why a command is unavailable.
        for binding in bindings_for(self, event.key):
            if reason := self.reason_against(parse(binding.action)[1]):
                event.stop()
                self.notify(reason, markup=False)

    # Choosing a message and its version

    @Action("Message above", "up,ctrl+up", call="step(-1)", name="message_above")
    @Action("Message below", "down,ctrl+down", call="step(1)", name="message_below")
    async def action_step(self, step: int) -> None:
        """Focus the message `step` places on; below the last one is the prompt."""
        widgets = self._chat.widgets
        if not await widgets.transcript.focus_step(self.message, step) and step > 0:
            widgets.prompt.focus()

    # Other replies, and longer ones

    @Action("Another reply to the same message", "r", "Regenerate", also="retry again redo")
    def action_regenerate(self) -> None:
        chat, id = self._chat, self.message.id
        with chat.widgets.store_errors():
            if self._is_same_label():
                words = "A label is scored, not sampled: another reply would be the same."
                chat.widgets.inform(words)
                return
        chat.controls.begin(lambda session, cancel: [session.regenerate(id, cancel)])

    def _is_same_label(self) -> bool:
        """Whether the same model and prompt file would choose among labels again."""
        reply, conversation = self.message, self._chat.conversation
        session, store = conversation.session, conversation.chat.store
        conditions = store.conditions(reply.chat_id).get(reply.id)
        if session is None or conditions is None or not conditions.is_label:
            return False
        now = (session.model.name, conversation.chat.basis.prompt)
        return any(
            (generation.model, generation.template) == now
            for generation in store.generations(reply.chat_id)
            if generation.message_id == reply.id
        )

    @Action(
        "Previous version",
        "left",
        "Previous version",
        _no_version,
        _VERSIONS,
        call="sibling(-1)",
        name="earlier_version",
    )
    @Action(
        "Next version",
        "right",
        "Next version",
        _no_version,
        _VERSIONS,
        call="sibling(1)",
        name="later_version",
    )
    async def action_sibling(self, step: int) -> None:
        await self._chat.show_sibling(self.message, step)

    @Action("Continue the reply where it ended", "c", "Continue", _no_reply, also="more go on")
    def action_continue(self) -> None:
        id = self.message.id
        self._chat.controls.begin(lambda session, cancel: [session.continue_reply(id, cancel)])

    # Its text

    @Action("Edit your message and send it again", "e", "Edit")
    def action_edit(self) -> None:
        with self._chat.widgets.store_errors():
            message = self._chat.user_message(self.message)
            self._chat.edit(message, message.text)

    @Action("Edit a reply in place; it is marked as edited", "E", unless=_no_editable_reply)
    def action_edit_reply(self) -> None:
        if not self._chat.controls.is_busy():
            self._chat.edit(self.message, self.message.text, in_place=True)

    @Action("A new chat with the messages up to this one", "f")
    async def action_fork(self) -> None:
        await self._chat.controls.fork(self.message.id)

    @Action("Show or hide a reply's thoughts and tool results", "enter", "Open", _no_parts)
    def action_thoughts(self) -> None:
        if self.has_parts:
            self.toggle_parts()
        else:
            self.action_sources()

    @Action("Read the passages of documents behind a reply", "s", "Sources", _no_sources)
    def action_sources(self) -> None:
        self.app.push_screen(SourceScreen(self.message.sources))

    @Action("Copy the text to the clipboard", "y", "Copy")
    def action_copy(self) -> None:
        self.app.copy_to_clipboard(self.message.text)
        self._chat.widgets.inform("Copied to the clipboard.")

    @Action("Copy a code block; press again for the next", "Y", unless=_no_code)
    def action_copy_code(self) -> None:
        code, which = self._chat.code_blocks.next_of(self.message.id, self.message.text)
        self.app.copy_to_clipboard(code)
        self._chat.widgets.inform(f"{which} copied to the clipboard.")

    @Action("Delete the message and those that follow it", "d,delete", also="remove")
    async def action_delete(self) -> None:
        await self._chat.delete(self.message)

    # Verdicts

    @Action(
        "Good reply; press again to clear",
        "plus",
        "Good",
        _no_reply,
        _VERDICT,
        call="rate(1)",
        name="good",
    )
    @Action(
        "Bad reply; press again to clear",
        "minus",
        "Bad",
        _no_reply,
        _VERDICT,
        call="rate(-1)",
        name="bad",
    )
    def action_rate(self, thumb: int) -> None:
        """Rate a reply good (1) or bad (-1); the same rating again removes it."""
        reply, chat = self.message, self._chat
        store = chat.conversation.chat.store
        with chat.widgets.store_errors():
            feedback = store.feedback(reply.chat_id).get(reply.id)
            is_repeated = feedback is not None and feedback.thumb == thumb
            store.set_thumb(reply.id, 0 if is_repeated else thumb)
            chat.controls.show_feedback()

    @Action("Correct the reply: write what it should be", "w", "Correct", _no_reply)
    def action_correct(self) -> None:
        reply, store = self.message, self._chat.conversation.chat.store
        with self._chat.widgets.store_errors():
            feedback = store.feedback(reply.chat_id).get(reply.id)
            correction = feedback.correction if feedback is not None else None
            self._chat.edit(reply, correction or reply.text)

    @Action(
        "Rank the versions of a reply", "k", "Rank", lambda it: _no_reply(it) or _no_version(it)
    )
    def action_rank(self) -> None:
        self._chat.rank(self.message)

    @Action("Which training text a reply of your own run is from", "i", unless=_no_reply)
    def action_trace(self) -> None:
        reply, conversation, widgets = self.message, self._chat.conversation, self._chat.widgets
        try:
            generations = conversation.chat.store.generations(reply.chat_id)
            models = {one.message_id: one.model for one in generations}
            run = local_folder(models[reply.id]) if reply.id in models else None
        except (StoreError, ModelError) as error:
            widgets.show_problem(str(error))
            return
        if run is None:
            widgets.inform("No model on this machine wrote this reply.")
            return
        self.app.push_screen(TraceScreen(conversation, trace_command(run, reply.text)))


class MessageActions(ChatActions):
    """Actions on messages that need no focused one, and what several of them use."""

    def __init__(self) -> None:
        super().__init__()
        self.code_blocks = CodeBlocks()
        self._deleted: list[Deleted] = []

    def edit(self, message: StoredMessage, text: str, *, in_place: bool = False) -> None:
        """Let the user edit a message's text; in_place: a reply itself."""
        prompt = self.widgets.prompt
        prompt.edit_message(message, text, in_place)
        prompt.focus()

    async def keep_edit(self, reply: StoredMessage, text: str) -> None:
        """Store the new text of a reply, which is then marked as edited."""
        if self.controls.is_busy():
            self.widgets.prompt.give_back(text, reply, in_place=True)
            return
        with self.widgets.store_errors():
            self.conversation.chat.store.edit_reply(reply.id, text)
            await self.controls.open_at(reply.id)

    def keep_correction(self, reply: StoredMessage, text: str) -> None:
        """Store a correction; an empty or unchanged text removes it."""
        store = self.conversation.chat.store
        try:
            stored = store.message(reply.id)
            is_withdrawn = text.strip() in ("", stored.text.strip())
            store.set_correction(stored.id, None if is_withdrawn else text)
        except StoreError as error:
            self.widgets.prompt.give_back(text, reply)
            self.widgets.show_problem(str(error))
        else:
            self.controls.show_feedback()

    @Action(
        "Compare two replies to one message; the right one with these settings",
        "f4",
        command="compare",
        argument="[NAME=VALUE …]",
        values=lambda chat: chat.differences(),
        empty=True,
        waits=True,
    )
    @work
    async def action_compare(self, change: str = "") -> None:
        """Answer the focused message, or the text in the prompt, in two ways.

        change: of the right one, as `Variant.changed` reads it.
        """
        conversation, widgets = self.conversation, self.widgets
        if conversation.session is None:
            widgets.inform("The model is not loaded yet.")
            return
        if self.controls.is_busy():
            return
        with widgets.store_errors():
            message = self._message_to_compare()
            has_larger = bool(widgets.welcome.larger_is_here)
            screen = CompareScreen(conversation, message, change, has_larger)
            compared = await self.app.push_screen_wait(screen)
            if compared.chat_id is not None:
                # The chat goes on with the model that it had, not with the other side's.
                conversation.chat.store.set_model(compared.chat_id, widgets.status.model)
                await self.controls.open(compared.chat_id)
            elif compared.text:
                widgets.prompt.give_back(compared.text)

    def _message_to_compare(self) -> str | StoredMessage:
        """The message to answer, or a text taken from the prompt. Raises StoreError."""
        prompt = self.widgets.prompt
        if isinstance(self.focused, MessageView):
            return self.user_message(self.focused.message)
        if prompt.editing is not None:
            return ""
        text = prompt.text
        prompt.leave_edit()
        return text

    def user_message(self, message: StoredMessage) -> StoredMessage:
        """The user's message that a reply answers, or the message itself. Raises StoreError."""
        if message.role == "assistant" and message.parent_id is not None:
            return self.conversation.chat.store.message(message.parent_id)
        return message

    @Action("Go on in a new chat with these messages", command="fork", also="branch duplicate")
    async def action_fork(self) -> None:
        await self.controls.fork(None)

    @Action("Show or hide when messages were written", command="times", rare=True)
    def action_times(self) -> None:
        transcript = self.widgets.transcript
        transcript.show_times(not transcript.times)

    async def action_show_version(self, step: int) -> None:
        """Show the version of the last message `step` places after the current one."""
        path = self.widgets.transcript.path
        if path and path[-1].siblings > 1:
            await self.show_sibling(path[-1], step)

    async def show_sibling(self, message: StoredMessage, step: int) -> None:
        """Show the version of a message `step` places after it."""
        if self.controls.is_busy():
            return
        widgets = self.widgets
        writing = self.focused is widgets.prompt
        with widgets.store_errors():
            sibling = self.conversation.chat.go_to_sibling(message, step)
            if sibling is not None:
                await self.controls.open(sibling.chat_id)
                view = widgets.transcript.view(sibling.id)
                if view is not None and not writing:
                    view.focus()

    def action_focus_last_message(self) -> None:
        """Move from the prompt to the messages: to the marked one, or else to the last."""
        transcript = self.widgets.transcript
        if views := transcript.views:
            (transcript.marked or views[-1]).focus()

    async def delete(self, message: StoredMessage) -> None:
        """Delete a message with all that follow it."""
        if self.controls.is_busy():
            return
        with self.widgets.store_errors():
            deleted = self.conversation.chat.store.delete_message(message.id)
            self._deleted.append(deleted)
            await self.controls.open(deleted.chat_id)
            others = deleted.count - 1
            with_others = f" with the {others} that followed" if others else ""
            self.widgets.inform(f"Message deleted{with_others}. u or /undo brings it back.")
            self.action_focus_last_message()

    @Action("Bring back the message deleted last", command="undo", rare=True)
    async def action_undelete(self) -> None:
        if not self._deleted:
            self.widgets.inform("No message has been deleted.")
        elif not self.controls.is_busy():
            with self.widgets.store_errors():
                self.conversation.chat.store.restore_messages(self._deleted[-1])
                await self.controls.open(self._deleted.pop().chat_id)
                self.app.clear_notifications()  # of the deletion
                self.action_focus_last_message()

    @work
    async def rank(self, reply: StoredMessage) -> None:
        """Let the user rank a reply and its siblings."""
        store = self.conversation.chat.store
        with self.widgets.store_errors():
            siblings = store.siblings(reply.id)
            feedback = store.feedback(reply.chat_id)
            ranks = {id: verdict.rank for id, verdict in feedback.items() if verdict.rank}
            ranking = await self.app.push_screen_wait(RankScreen(siblings, ranks))
            if ranking is not None:
                store.set_ranking(ranking)
                self.controls.show_feedback()
