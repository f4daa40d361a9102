"""Replies while they are generated on a thread, and what the thread tells the screen about them.

Tokens are only collected here; the screen takes them a few times a second with `take`, so
that a fast model costs the event loop no more than a slow one.

Keep: only `run` is called on the thread, and it alone writes; everything else reads, so that no
lock is needed.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message
from textual.message_pump import MessagePump

from chatapp.dialogue.events import Called, Calling
from chatapp.engine.events import Finished, Token
from chatapp.tui.events import Submitted

if TYPE_CHECKING:
    from chatapp.dialogue.events import ReplyEvent
    from chatapp.dialogue.session import SessionEvent, Started
    from chatapp.dialogue.store.rows import StoredMessage
    from chatapp.prompting.messages import Call

NumberedEvent = tuple[int, "SessionEvent | Exception"]


class GrowingReply:
    """A reply of a turn as far as it has come. number: which one of them, from 0."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._pieces: list[str] = []
        self._taken = 0
        self._thoughts: list[str] = []
        self._taken_thoughts = 0
        self._first_token = 0.0
        self.message: StoredMessage | None = None
        """Its row as it was before this turn; None until it has started."""
        self.has_ended = False
        """Whether nothing more comes of it, and all of it is stored that can be."""
        self.tokens = 0
        self.thought_tokens = 0

    def add(self, event: "ReplyEvent") -> None:
        """Add what has been generated, or what a call of a tool brings into the text."""
        self._pieces.append(event.text)
        self._thoughts.append(event.thought or "")
        if isinstance(event, Token):
            self._first_token = self._first_token or time.perf_counter()
            self.tokens += 1
            self.thought_tokens += event.thought is not None

    def take(self) -> str:
        """The text that has arrived since the last call."""
        new = self._pieces[self._taken :]
        self._taken += len(new)
        return "".join(new)

    def take_thoughts(self) -> str:
        """What has been thought since the last call."""
        new = self._thoughts[self._taken_thoughts :]
        self._taken_thoughts += len(new)
        return "".join(new)

    @property
    def text(self) -> str:
        """All its text so far, of this turn."""
        return "".join(self._pieces)

    @property
    def thoughts(self) -> str:
        """All that was thought before it so far, in this turn."""
        return "".join(self._thoughts)

    @property
    def tokens_per_second(self) -> float:
        """The speed so far, the first token not counted."""
        seconds = time.perf_counter() - self._first_token
        return (self.tokens - 1) / seconds if self.tokens > 1 else 0.0


class RunningTurn:
    """Runs a turn's replies and tells `listener` how they go.

    events: of `count` replies, each with the number of its own; setting `cancel` ends them.
    submitted: what the user has sent, when that is what this turn answers.
    """

    def __init__(
        self,
        events: Iterator[NumberedEvent],
        count: int,
        cancel: threading.Event,
        listener: MessagePump,
        submitted: Submitted | None = None,
    ) -> None:
        self.replies = [GrowingReply(number) for number in range(count)]
        self.submitted = submitted
        self._events = events
        self._cancel = cancel
        self._listener = listener
        self._ended = threading.Event()

    def stop(self) -> None:
        """Ask the model to stop. It does so within one token."""
        self._cancel.set()

    def join(self, timeout: float) -> bool:
        """Wait for the end, at most so many seconds; whether it has come."""
        return self._ended.wait(timeout)

    def run(self) -> None:
        """Generate to the end. To be called on a thread."""
        try:
            for number, event in self._events:
                self._take_in(self.replies[number], event)
        except Exception as error:
            for reply in self.replies:
                if not reply.has_ended:
                    self._take_in(reply, error)
        finally:
            self._ended.set()

    def _take_in(self, reply: GrowingReply, event: "SessionEvent | Exception") -> None:
        if isinstance(event, Token):
            reply.add(event)
        elif isinstance(event, Finished):  # which the session tells once all of it is stored
            reply.add(event)
            reply.has_ended = True
            self._listener.post_message(TurnEnded(self, reply, event))
        elif isinstance(event, Exception):
            reply.has_ended = True
            self._listener.post_message(TurnFailed(self, reply, event))
        elif isinstance(event, Calling | Called):
            reply.add(event)
            has_ended = isinstance(event, Called)
            self._listener.post_message(ToolTold(self, reply, event.call, has_ended))
        else:
            reply.message = event.message
            self._listener.post_message(TurnStarted(self, reply, event))


@dataclass
class TurnEvent(Message):
    """What a turn's thread tells the screen of one of its replies."""

    turn: RunningTurn
    reply: GrowingReply


@dataclass
class TurnStarted(TurnEvent):
    """It is about to be generated; its row is in the store."""

    started: "Started"


@dataclass
class ToolTold(TurnEvent):
    """A tool is about to be called, or its call has ended."""

    call: "Call"
    has_ended: bool


@dataclass
class TurnEnded(TurnEvent):
    """It has ended, for whatever reason `finished` gives."""

    finished: Finished


@dataclass
class TurnFailed(TurnEvent):
    """It was refused or broke down."""

    error: Exception
