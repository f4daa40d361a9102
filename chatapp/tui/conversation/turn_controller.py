"""Leads turns on a screen from their beginning to their end.

Keep: a screen hears only of the turn that runs now; what comes late from one that was left
behind is dropped.
"""

from typing import TYPE_CHECKING, Protocol

from textual.timer import Timer

from chatapp.tui.conversation.turn import (
    GrowingReply,
    RunningTurn,
    TurnEnded,
    TurnEvent,
    TurnFailed,
    TurnStarted,
)
from chatapp.tui.platform.runtime import in_words

if TYPE_CHECKING:
    from textual.message_pump import MessagePump

    from chatapp.dialogue.session import Started
    from chatapp.engine.events import Finished
    from chatapp.tui.conversation.conversation import Conversation, TurnRequest

UPDATES_PER_SECOND = 15


class TurnDisplay(Protocol):
    """What shows the replies of a turn. All of it is called on the event loop."""

    async def turn_started(self, reply: GrowingReply, started: "Started") -> None:
        """The reply has a row in the store."""

    def turn_progressed(self, reply: GrowingReply, text: str) -> None:
        """The reply goes on; `text` has been generated since the last time."""

    async def turn_ended(self, reply: GrowingReply, finished: "Finished") -> None:
        """The store has all of the reply."""

    async def turn_failed(self, turn: RunningTurn, reply: GrowingReply, reason: str) -> None:
        """The reply was refused, or broke down half-way."""


class TurnController:
    """Tells `display` of the turns it begins.

    screen: gets the turns' events, each of which it passes to `handle`.
    """

    def __init__(
        self, conversation: "Conversation", screen: "MessagePump", display: TurnDisplay
    ) -> None:
        self._conversation = conversation
        self._screen = screen
        self._display = display
        self._timer: Timer | None = None
        self._shown: list[GrowingReply] = []
        self._ended = 0

    def begin(self, request: "TurnRequest") -> bool:
        """Carry out a request; False when it has to wait for the model."""
        if not self._conversation.begin(request, self._screen):
            return False
        self.leave()
        self._ended = 0
        self._timer = self._screen.set_interval(1 / UPDATES_PER_SECOND, self.flush)
        return True

    async def handle(self, event: TurnEvent) -> None:
        """Show what a turn's thread has told."""
        if event.turn is not self._conversation.turn:
            return
        if isinstance(event, TurnStarted):
            await self._display.turn_started(event.reply, event.started)
            if event.turn is self._conversation.turn:  # not left behind meanwhile
                self._shown.append(event.reply)
        elif isinstance(event, TurnEnded):
            self._end(event)
            await self._display.turn_ended(event.reply, event.finished)
        elif isinstance(event, TurnFailed):
            self._end(event)
            await self._display.turn_failed(event.turn, event.reply, in_words(event.error))

    def _end(self, event: TurnEvent) -> None:
        """Be done with a reply, and after the last one with the turn."""
        self.flush()
        if event.reply in self._shown:
            self._shown.remove(event.reply)
        self._ended += 1
        if self._ended == len(event.turn.replies):
            self.end()

    def flush(self) -> None:
        """Bring what has been generated to the screen."""
        for reply in self._shown:
            self._display.turn_progressed(reply, reply.take())

    def end(self) -> "TurnRequest | None":
        """Be done with the turn that runs, or with the one that waits; returns its request."""
        self.flush()
        self.leave()
        return self._conversation.end()

    def leave(self) -> None:
        """Show no more of the turn that runs."""
        self._shown.clear()
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
