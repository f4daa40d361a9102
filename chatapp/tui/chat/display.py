"""A turn's reply on the chat screen: begun, growing, calling tools, ended or refused."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from chatapp.tui.platform import runtime
from chatapp.tui.platform.actions import shown_key
from chatapp.tui.widgets.message import MessageView
from chatapp.tui.widgets.status import RUNNING_TOOL

if TYPE_CHECKING:
    from chatapp.dialogue.events import Started
    from chatapp.engine.events import Finished
    from chatapp.prompting.messages import Call
    from chatapp.tui.chat.parts import ChatWidgets
    from chatapp.tui.conversation.conversation import Conversation
    from chatapp.tui.conversation.turn import DrawnReply
    from chatapp.tui.events import Submitted


class ReplyDisplay:
    """Shows one reply in the transcript and in the status line.

    submitted: goes back into the prompt if the reply is refused. on_change: called when the reply
    is stored, and at its end; goes_on: whether the next message may be sent.
    """

    def __init__(
        self,
        conversation: "Conversation",
        widgets: "ChatWidgets",
        submitted: "Submitted | None",
        on_change: Callable[..., Awaitable[None]],
    ) -> None:
        self._conversation = conversation
        self._widgets = widgets
        self._submitted = submitted
        self._on_change = on_change
        self._started: Started | None = None
        self._view: MessageView | None = None

    async def begin(self, started: "Started") -> None:
        transcript, status = self._widgets.transcript, self._widgets.status
        self._started = started
        new = [message for message in (started.user_message, started.message) if message]
        ids = [message.id for message in transcript.path]
        above = new[0].parent_id
        kept = 0 if above is None else ids.index(above) + 1
        transcript.live = started.message.id
        was_on_message = isinstance(transcript.screen.focused, MessageView)
        await transcript.show([*transcript.path[:kept], *new])
        self._view = transcript.view(started.message.id)
        if was_on_message and self._view is not None:
            self._view.focus(scroll_visible=False)  # a second r generates another reply
        status.used, status.dropped = started.prompt_tokens, started.dropped
        self._widgets.show_title()
        await self._on_change(has_ended=False)

    def go_on(self, reply: "DrawnReply", text: str, thought: str) -> None:
        status, view, started = self._widgets.status, self._view, self._started
        if view is None or started is None:
            return
        if text:
            if status.state == "thinking":
                status.state = "streaming"
                view.call_after_refresh(runtime.mark, "first_token")
            view.append(text)
        if reply.thought_tokens:
            view.think(thought, started.message.thought_tokens + reply.thought_tokens)
        status.used = started.prompt_tokens + reply.tokens
        status.speed = reply.tokens_per_second

    def show_call(self, call: "Call", *, has_ended: bool) -> None:
        if self._view is None:
            return
        if has_ended:
            self._view.end_call(call)
        else:
            self._view.begin_call(call)
        self._widgets.status.state = "thinking" if has_ended else RUNNING_TOOL

    async def end(self, finished: "Finished") -> None:
        status = self._widgets.status
        self._show_stored(finished.reason)
        status.speed = finished.tokens_per_second
        status.state = {"cancelled": "stopped", "error": "error"}.get(finished.reason, "ready")
        if finished.reason == "error":
            self._widgets.show_problem(f"The model failed: {finished.message}")
        await self._on_change(has_ended=True, goes_on=finished.reason not in ("cancelled", "error"))

    async def fail(self, reason: str) -> None:
        if self._started is not None:  # it failed half-way
            self._show_stored("error")
            self._widgets.show_problem(reason)
        else:
            if self._submitted is not None:
                key = shown_key(self._widgets.prompt.app, "interrupt")
                reason += f"\n{key} empties the prompt."
            await self._widgets.take_back(self._submitted, reason)
        self._widgets.status.state = "error"
        await self._on_change(has_ended=True)

    def _show_stored(self, reason: str) -> None:
        """Show the complete stored reply."""
        transcript = self._widgets.transcript
        live, transcript.live = transcript.live, None
        with self._widgets.store_errors():
            if live is not None:
                transcript.refresh_message(self._conversation.chat.message(live), reason)
        self._conversation.measure()
        self._widgets.look_again()
