"""One turn: draws its replies on a thread, collects them, and updates their displays.

Invariant: only `run` runs on the thread, and only it writes the collected data; everything else
runs on the event loop and only reads that, so no lock is needed. Displays get new text a few times
per second, so a fast model costs the event loop no more than a slow one. An abandoned turn shows
nothing more.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from textual.message_pump import MessagePump
from textual.timer import Timer

from chatapp.dialogue.events import Called, Calling
from chatapp.engine.events import Finished, Token
from chatapp.tui.events import Submitted
from chatapp.tui.platform.runtime import in_words

if TYPE_CHECKING:
    from chatapp.dialogue.events import ReplyEvent, SessionEvent, Started
    from chatapp.dialogue.session import Session
    from chatapp.dialogue.store.rows import StoredMessage
    from chatapp.prompting.messages import Call

UPDATES_PER_SECOND = 15

Start = Callable[["Session", threading.Event], "Sequence[Iterator[SessionEvent]]"]
"""Starts the replies of a turn, drawn in turn until the event is set."""

NumberedEvent = tuple[int, "SessionEvent | BaseException"]


class ShownReply:
    """The new part of a turn's reply.

    before: its row before the turn; None until it is stored. has_ended: whether it is complete and
    stored as far as possible. tool: the name of the tool that is running.
    """

    def __init__(self) -> None:
        self.before: StoredMessage | None = None
        self.has_ended = False
        self.tool = ""
        self.text = ""
        self.thoughts = ""
        self.tokens = 0
        self.thought_tokens = 0
        self._first_token = 0.0

    def add(self, event: "ReplyEvent") -> None:
        """Add generated text, or the text of a tool's call."""
        self.text += event.text
        self.thoughts += event.thought or ""
        if isinstance(event, Calling | Called):
            self.tool = event.call.name if isinstance(event, Calling) else ""
        if isinstance(event, Token):
            self._first_token = self._first_token or time.perf_counter()
            self.tokens += 1
            self.thought_tokens += event.thought is not None

    @property
    def tokens_per_second(self) -> float:
        """The speed so far, without the first token."""
        seconds = time.perf_counter() - self._first_token
        return (self.tokens - 1) / seconds if self.tokens > 1 else 0.0


class Display(Protocol):
    """Shows one reply of the turn."""

    async def begin(self, started: "Started") -> None:
        """The reply has a row in the store."""

    def go_on(self, reply: ShownReply, text: str, thought: str) -> None:
        """The reply has grown; `text` and `thought` are new since the last call."""

    def show_call(self, call: "Call", *, has_ended: bool) -> None:
        """A tool is called, or its call has ended. Earlier text is shown already."""

    async def end(self, finished: Finished) -> None:
        """The store has the complete reply."""

    async def fail(self, reason: str) -> None:
        """The reply was refused, or failed half-way."""


class ReplyTurn:
    """Draws replies and shows each on its display.

    start: see `Start`. displays: one for each reply. submitted: the user's text, if the turn
    answers it.
    """

    def __init__(
        self, start: Start, displays: Sequence[Display], submitted: Submitted | None = None
    ) -> None:
        self.start = start
        self.replies = [ShownReply() for _ in displays]
        self.submitted = submitted
        self.cancel = threading.Event()
        """Setting it stops the replies, each within one token."""
        self.has_begun = False
        """Whether it is being drawn; before, it waits for the model."""
        self._displays = displays
        self._ended = threading.Event()
        self._growing: dict[int, tuple[int, int]] = {}
        """By the number of a reply that has begun: the lengths of its text and thought already
        shown.
        """
        self._open = len(displays)
        self._lost: Callable[[str], None] | None = None
        self._timer: Timer | None = None

    def begin(self, pump: MessagePump, on_end: Callable[[], object]) -> None:
        """Get ready to show what `run` draws.

        pump: on whose queue that is done. on_end: called before the last reply is shown as ended,
        unless the turn was left.
        """
        self.has_begun = True
        self._pump, self._on_end = pump, on_end
        self._timer = pump.set_interval(1 / UPDATES_PER_SECOND, self.flush)

    def leave(self, lost: Callable[[str], None]) -> None:
        """Show nothing more. lost: called with the reason if it is refused and the submitted text
        is not stored.
        """
        self._lost = lost
        self._stop_timer()

    @property
    def words(self) -> str:
        """What quitting abandons of it."""
        if not self.has_begun:
            return "a message that waited for the model, which is kept as a draft"
        tools = [f" and its call of {reply.tool}" for reply in self.replies if reply.tool]
        replies = "a reply" if len(self.replies) == 1 else "two replies"
        return f"{replies}, kept as far as written{''.join(tools)}"

    def join(self, timeout: float) -> bool:
        """Wait for the end, at most this many seconds; return whether it has ended."""
        return self._ended.wait(timeout)

    # On the thread

    def run(self, events: Iterator[NumberedEvent]) -> None:
        """Draw the replies to their ends. events: theirs, each with the number of its reply."""
        try:
            for number, event in events:
                self._collect(number, event)
        except BaseException as error:
            for number, reply in enumerate(self.replies):
                if not reply.has_ended:
                    self._collect(number, error)
        finally:
            self._ended.set()

    def _collect(self, number: int, event: "SessionEvent | BaseException") -> None:
        reply = self.replies[number]
        if isinstance(event, Token | Calling | Called | Finished):
            reply.add(event)
        elif not isinstance(event, BaseException):
            reply.before = event.message
        # The session yields its end once all of it is stored.
        reply.has_ended = isinstance(event, Finished | BaseException)
        if not isinstance(event, Token):
            self._pump.call_later(self._show, number, event)

    # On the event loop

    async def _show(self, number: int, event: "SessionEvent | BaseException") -> None:
        """Pass an event other than a token to the display of its reply."""
        display = self._displays[number]
        if self._lost is not None:
            if isinstance(event, BaseException) and self.replies[number].before is None:
                self._lost(in_words(event))
        elif isinstance(event, Calling | Called):
            self.flush()
            display.show_call(event.call, has_ended=isinstance(event, Called))
        elif isinstance(event, Finished | BaseException):
            self._end(number)
            if isinstance(event, Finished):
                await display.end(event)
            else:
                await display.fail(in_words(event))
        elif not isinstance(event, Token):
            await display.begin(event)
            self._growing[number] = (0, 0)

    def _end(self, number: int) -> None:
        self.flush()
        self._growing.pop(number, None)
        self._open -= 1
        if not self._open:
            self._stop_timer()
            self._on_end()

    def flush(self) -> None:
        """Pass new text to the displays."""
        if self._lost is not None:
            return
        for number, (text, thoughts) in self._growing.items():
            reply = self.replies[number]
            # Read once, because the thread continues.
            all_text, all_thoughts = reply.text, reply.thoughts
            self._growing[number] = len(all_text), len(all_thoughts)
            self._displays[number].go_on(reply, all_text[text:], all_thoughts[thoughts:])

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
