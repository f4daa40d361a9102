"""A reply while it is generated on a thread, and what the thread tells the screen about it.

Tokens are only collected here; the screen takes them a few times a second with `take`, so
that a fast model costs the event loop no more than a slow one.

Keep: only `run` is called on the thread, and it alone writes; everything else reads, so that no
lock is needed.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message
from textual.message_pump import MessagePump

from chatapp.engine.events import Finished, Token
from chatapp.tui.events import Submitted

if TYPE_CHECKING:
    from chatapp.dialogue.session import SessionEvent, Started
    from chatapp.dialogue.store import StoredMessage
    from chatapp.prompting.calls import Call

Generate = Callable[[threading.Event], "Iterator[SessionEvent]"]


class RunningTurn:
    """Runs `generate` and tells `listener` how it goes.

    submitted: what the user has sent, when that is what this turn answers.
    """

    def __init__(
        self, generate: Generate, listener: MessagePump, submitted: Submitted | None = None
    ) -> None:
        self.submitted = submitted
        self._generate = generate
        self._listener = listener
        self._cancel = threading.Event()
        self._ended = threading.Event()
        self._pieces: list[str] = []
        self._taken = 0
        self._thoughts: list[str] = []
        self._taken_thoughts = 0
        self._first_token = 0.0
        self.reply: StoredMessage | None = None
        """The reply's row as it was before this turn; None until the turn has started."""
        self.tokens = 0
        self.thought_tokens = 0

    def stop(self) -> None:
        """Ask the model to stop. It does so within one token."""
        self._cancel.set()

    def join(self, timeout: float) -> bool:
        """Wait for the end, at most so many seconds; whether it has come."""
        return self._ended.wait(timeout)

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
        """All text of this turn so far."""
        return "".join(self._pieces)

    @property
    def thoughts(self) -> str:
        """All that was thought in this turn so far."""
        return "".join(self._thoughts)

    @property
    def tokens_per_second(self) -> float:
        """The speed so far, the first token not counted."""
        seconds = time.perf_counter() - self._first_token
        return (self.tokens - 1) / seconds if self.tokens > 1 else 0.0

    def run(self) -> None:
        """Generate to the end. To be called on a thread."""
        from chatapp.dialogue.call_events import Called, Calling

        finished: Finished | None = None
        try:
            for event in self._generate(self._cancel):
                if isinstance(event, Token):
                    self._first_token = self._first_token or time.perf_counter()
                    self._pieces.append(event.text)
                    self._thoughts.append(event.thought or "")
                    self.tokens += 1
                    self.thought_tokens += event.thought is not None
                elif isinstance(event, Finished):
                    self._pieces.append(event.text)
                    self._thoughts.append(event.thought or "")
                    finished = event
                elif isinstance(event, Calling | Called):
                    self._pieces.append(event.text)
                    ended = isinstance(event, Called)
                    self._listener.post_message(ToolTold(self, event.call, ended))
                else:
                    self.reply = event.message
                    self._listener.post_message(TurnStarted(self, event))
        except Exception as error:
            self._listener.post_message(TurnFailed(self, error))
        else:
            # Only now has the generator stored everything.
            if finished is not None:
                self._listener.post_message(TurnEnded(self, finished))
        finally:
            self._ended.set()


@dataclass
class TurnEvent(Message):
    """What a turn's thread tells the screen."""

    turn: RunningTurn


@dataclass
class TurnStarted(TurnEvent):
    """A reply is about to be generated; its row is in the store."""

    started: "Started"


@dataclass
class ToolTold(TurnEvent):
    """A tool is about to be called, or its call has ended."""

    call: "Call"
    has_ended: bool


@dataclass
class TurnEnded(TurnEvent):
    """A reply has ended, for whatever reason `finished` gives."""

    finished: Finished


@dataclass
class TurnFailed(TurnEvent):
    """A turn was refused or broke down."""

    error: Exception
