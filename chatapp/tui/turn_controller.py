"""Leads turns on a screen from their beginning to their end.

Keep: a screen hears only of the turn that runs now; what comes late from one that was left
behind is dropped.
"""

from typing import TYPE_CHECKING, Protocol

from textual.timer import Timer

from chatapp.tui.turn import RunningTurn, TurnEnded, TurnEvent, TurnFailed, TurnStarted
from chatapp.tui.words import in_words

if TYPE_CHECKING:
    from textual.message_pump import MessagePump

    from chatapp.dialogue.session import Started
    from chatapp.engine.events import Finished
    from chatapp.tui.conversation import Conversation, TurnRequest

UPDATES_PER_SECOND = 15


class TurnDisplay(Protocol):
    """What shows a turn. All of it is called on the event loop."""

    async def turn_started(self, started: "Started") -> None:
        """The reply has a row in the store."""

    def turn_progressed(self, turn: RunningTurn, text: str) -> None:
        """The turn goes on; `text` has been generated since the last time."""

    async def turn_ended(self, finished: "Finished") -> None:
        """The store has all of the reply."""

    async def turn_failed(self, turn: RunningTurn, reason: str) -> None:
        """The turn was refused, or broke down half-way."""


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
        self._has_started = False

    def begin(self, request: "TurnRequest") -> bool:
        """Carry out a request; False when it has to wait for the model."""
        if not self._conversation.begin(request, self._screen):
            return False
        self._has_started = False
        self._stop_timer()
        self._timer = self._screen.set_interval(1 / UPDATES_PER_SECOND, self.flush)
        return True

    async def handle(self, event: TurnEvent) -> None:
        """Show what a turn's thread has told."""
        if event.turn is not self._conversation.turn:
            return
        if isinstance(event, TurnStarted):
            await self._display.turn_started(event.started)
            self._has_started = True
        elif isinstance(event, TurnEnded):
            self.end()
            await self._display.turn_ended(event.finished)
        elif isinstance(event, TurnFailed):
            self.end()
            await self._display.turn_failed(event.turn, in_words(event.error))

    def flush(self) -> None:
        """Bring what has been generated to the screen."""
        turn = self._conversation.turn
        if turn is not None and self._has_started:
            self._display.turn_progressed(turn, turn.take())

    def end(self) -> "TurnRequest | None":
        """Be done with the turn that runs, or with the one that waits; returns its request."""
        self.flush()
        self.leave()
        return self._conversation.end()

    def leave(self) -> None:
        """Show no more of the turn that runs."""
        self._has_started = False
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
