"""The turns of a chat: sent, waiting for the model, written, ended or refused.

Keep: a text that the user has sent is in the chat, on its way there, or back in the prompt.
"""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from textual.timer import Timer

from chatapp.dialogue.store.database import StoreError
from chatapp.tui.conversation.conversation import TurnRequest
from chatapp.tui.conversation.turn import (
    GrowingReply,
    RunningTurn,
    ToolTold,
    TurnEnded,
    TurnEvent,
    TurnFailed,
)
from chatapp.tui.conversation.turn_controller import TurnController
from chatapp.tui.platform import runtime
from chatapp.tui.platform.runtime import in_words
from chatapp.tui.widgets.approval import Question
from chatapp.tui.widgets.message import MessageView
from chatapp.tui.widgets.status import ASKING, RUNNING_TOOL

if TYPE_CHECKING:
    from textual.message_pump import MessagePump

    from chatapp.dialogue.chat import Decision
    from chatapp.dialogue.session import Started
    from chatapp.dialogue.store import Store
    from chatapp.engine.events import Finished
    from chatapp.tui.chat.inspecting import Inspecting
    from chatapp.tui.chat.model_switch import ModelSwitch
    from chatapp.tui.chat.parts import ChatWidgets
    from chatapp.tui.conversation.conversation import Conversation
    from chatapp.tui.events import Submitted


_TRY_EVERY_SECONDS = 2.0
"""How often a reply is stored again for which there was no room."""


class ChatTurns:
    """Begins the turns of a conversation and shows them on its screen."""

    def __init__(
        self,
        conversation: "Conversation",
        store: "Store",
        screen: "MessagePump",
        widgets: "ChatWidgets",
        models: "ModelSwitch",
        inspecting: "Inspecting",
    ) -> None:
        self._conversation = conversation
        self._store = store
        self._widgets = widgets
        self._models = models
        self._inspecting = inspecting
        self._screen = screen
        self._controller = TurnController(conversation, screen, self)
        self._storing: Timer | None = None
        self._reply: MessageView | None = None
        self._prompt_tokens = 0

    # Beginning

    async def send(self, submitted: "Submitted") -> None:
        """Have a message answered, or a message of before with another text."""
        text, editing = submitted.text, submitted.editing
        if self.is_busy():
            self._widgets.prompt.give_back(text, editing)
            return
        if editing is None:
            request = TurnRequest(lambda session, cancel: [session.say(text, cancel)], submitted)
        else:
            request = TurnRequest(
                lambda session, cancel: [session.edit(editing.id, text, cancel)], submitted
            )
        self._widgets.show_problem("")
        self._widgets.show_welcome(False)
        ready = self._conversation.session is not None
        note = "" if ready else "waiting for the model to be loaded"
        await self._widgets.transcript.wait(text, note)
        self._begin(request)

    def begin(self, request: TurnRequest) -> None:
        """Begin what the user has asked of a message that is there."""
        if self._conversation.session is None:
            self._widgets.inform("The model is not loaded yet.")
        elif not self.is_busy():
            self._widgets.show_problem("")
            self._begin(request)

    def begin_waiting(self) -> None:
        """Begin the turn that has waited for the model, if one has."""
        request = self._conversation.request
        if request is not None and self._conversation.turn is None:
            self._begin(request)

    def _begin(self, request: TurnRequest) -> None:
        status = self._widgets.status
        if self._controller.begin(request):
            status.state = "thinking"
            status.speed = 0.0
        elif self._conversation.loading is None:
            self._models.load()

    def is_busy(self) -> bool:
        """Whether a turn is under way; then the user is told so."""
        if self._conversation.request is None:
            return False
        waits = self._conversation.turn is None
        words = "A message is waiting for the model." if waits else "A reply is being written."
        self._widgets.inform(f"{words} Esc stops it.")
        return True

    # Ending

    async def stop(self) -> bool:
        """Stop the turn that runs, or take back the one that waits; False when there is none."""
        if self._conversation.turn is not None:
            self._conversation.stop()
        elif self._conversation.request is not None:
            await self.refuse("")
        else:
            return False
        return True

    async def refuse(self, reason: str) -> None:
        """Say why a turn cannot be had, and give its text back."""
        request = self._controller.end()
        await self._take_back(request.submitted if request is not None else None, reason)

    async def _take_back(self, submitted: "Submitted | None", reason: str) -> None:
        await self._widgets.transcript.stop_waiting()
        self._widgets.show_welcome(not self._widgets.transcript.path)
        if submitted is not None:
            self._widgets.prompt.give_back(submitted.text, submitted.editing)
        self._widgets.show_problem(reason)

    async def take_back_waiting(self) -> None:
        """Give the text of a turn that waits for the model back, so that it is not lost."""
        if self._conversation.request is not None and self._conversation.turn is None:
            await self.refuse("")

    def leave(self) -> None:
        """Show no more of the turn that runs: another chat has been opened."""
        self._controller.leave()
        self.withdraw_question()
        self._reply = self._widgets.transcript.live = None

    # What the turn's thread has told

    async def handle(self, event: TurnEvent) -> None:
        """Show what a turn's thread has told."""
        if isinstance(event, TurnFailed) and event.turn is not self._conversation.turn:
            self._give_back(event)
        if isinstance(event, ToolTold) and event.turn is self._conversation.turn:
            self._show_call(event)
        if isinstance(event, TurnEnded | TurnFailed):
            self.withdraw_question()
        await self._controller.handle(event)

    def _give_back(self, event: TurnFailed) -> None:
        """A turn that was left behind has failed, but what the user sent is not lost."""
        submitted = event.turn.submitted
        if event.reply.message is None and submitted is not None:
            self._widgets.prompt.give_back(submitted.text)
            self._widgets.show_problem(in_words(event.error))

    def _show_call(self, told: ToolTold) -> None:
        """Show that a tool is called, or what it told, after all that was said before."""
        self.flush()
        view, status = self._reply, self._widgets.status
        if view is None:
            return
        if told.has_ended:
            view.end_call(told.call)
            status.state = "thinking"
        else:
            view.begin_call(told.call)
            status.state = RUNNING_TOOL

    def ask(self, question: Question) -> None:
        """Ask whether a tool may run, unless the turn that needs it is over."""
        if self._conversation.turn is None:
            question.answer("no")
        else:
            self._widgets.approval.ask(question)
            self._widgets.status.state = ASKING

    def answer(self, question: Question, decision: "Decision") -> None:
        """Let the turn go on that has asked, and give the keys back."""
        self._widgets.prompt.focus()
        self._widgets.status.state = RUNNING_TOOL
        question.answer(decision)

    def withdraw_question(self) -> None:
        """Ask no more, and give the keys back."""
        if self._widgets.approval.display:
            self._widgets.approval.withdraw()
            self._widgets.prompt.focus()

    def flush(self) -> None:
        """Bring what has been generated to the screen."""
        self._controller.flush()

    async def turn_started(self, reply: GrowingReply, started: "Started") -> None:
        transcript, status = self._widgets.transcript, self._widgets.status
        new = [message for message in (started.user_message, started.message) if message]
        path = transcript.path
        ids = [message.id for message in path]
        above = new[0].parent_id
        kept = 0 if above is None else ids.index(above) + 1
        transcript.live = started.message.id
        was_on_message = isinstance(transcript.screen.focused, MessageView)
        await transcript.show([*path[:kept], *new])
        self._reply = transcript.view(started.message.id)
        if was_on_message and self._reply is not None:
            self._reply.focus(scroll_visible=False)  # a second r makes another reply still
        self._prompt_tokens = status.used = started.prompt_tokens
        status.dropped = started.dropped
        self._widgets.show_title()

    def turn_progressed(self, reply: GrowingReply, text: str) -> None:
        status = self._widgets.status
        if text and self._reply is not None:
            if status.state == "thinking":
                status.state = "streaming"
                self._widgets.transcript.call_after_refresh(runtime.mark, "first_token")
            self._reply.append(text)
        thought, before = reply.take_thoughts(), reply.message
        if reply.thought_tokens and before is not None and self._reply is not None:
            self._reply.think(thought, before.thought_tokens + reply.thought_tokens)
        status.used = self._prompt_tokens + reply.tokens
        status.speed = reply.tokens_per_second

    async def turn_ended(self, reply: GrowingReply, finished: "Finished") -> None:
        status = self._widgets.status
        failed = finished.reason == "error"
        self._show_stored(finished.reason)
        status.speed = finished.tokens_per_second
        status.state = {"cancelled": "stopped", "error": "error"}.get(finished.reason, "ready")
        if failed:
            self._widgets.show_problem(f"The model failed: {finished.message}")

    async def turn_failed(self, turn: RunningTurn, reply: GrowingReply, reason: str) -> None:
        if self._widgets.transcript.live is not None:  # it broke down half-way
            self._show_stored("error")
            self._widgets.show_problem(reason)
            if self._conversation.has_rest:
                self._store_soon()
        else:
            await self._take_back(turn.submitted, reason)
        self._widgets.status.state = "error"

    def _store_soon(self) -> None:
        """Store what there was no room for as soon as there is some."""
        if self._storing is None:
            self._storing = self._screen.set_interval(_TRY_EVERY_SECONDS, self._store_rest)

    async def _store_rest(self) -> None:
        with suppress(StoreError):
            await asyncio.to_thread(self._conversation.store_rest)
            if self._storing is not None:
                self._storing.stop()
                self._storing = None
                self._widgets.show_problem("")
                self._widgets.inform("There is disk space again: the reply is saved.")

    def _show_stored(self, reason: str) -> None:
        """Show all of the reply, as it has been stored or is to be."""
        transcript = self._widgets.transcript
        live, transcript.live, self._reply = transcript.live, None, None
        with self._widgets.store_errors():
            if live is not None:
                transcript.refresh_message(self._conversation.chat.message(live), reason)
        self._conversation.measure()
        self._inspecting.look_again()
