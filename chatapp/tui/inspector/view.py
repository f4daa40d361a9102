"""What all tabs of the inspector share: the text they look at, and what they ask for.

Keep: a view draws the findings of `chatapp.lab` and computes nothing. What has to be computed, it
asks the inspector for, which does it on a thread.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from textual.containers import Vertical
from textual.content import Content
from textual.message import Message

from chatapp.lab.findings import Tokens

if TYPE_CHECKING:
    from chatapp.dialogue.reading import Reading
    from chatapp.dialogue.session import Session
    from chatapp.dialogue.store.rows import StoredMessage
    from chatapp.lab.inspectable import Inspectable
    from chatapp.lab.traces import Trace

EXAMPLE = "The manager hired John because he has extensive experience."
"""The sentence the lectures show attention with: whom is "he" looking at?"""


@dataclass(frozen=True, slots=True)
class Target:
    """What to look at: a message, or else a text that was not sent, or else the last message.

    instead_of: the user's message that the draft would take the place of.
    """

    message_id: int | None = None
    draft: str = ""
    instead_of: int | None = None


@dataclass
class Look:
    """A text as the model reads it.

    tokens: of which those from `start` on are the reply. reading: what the text is in its chat;
    None for the example sentence. template: in words, what laid it out; "" is nothing. is_draft:
    whether it was not sent yet. trace, model: None when the model does not show its inside, and
    then `reason` says so.
    """

    tokens: Tokens
    start: int
    reading: "Reading | None" = None
    template: str = ""
    is_draft: bool = False
    reason: str = ""
    model: "Inspectable | None" = None
    trace: "Trace | None" = None

    @property
    def message(self) -> "StoredMessage | None":
        """The reply's row, when there is one to branch from."""
        return self.reading.reply if self.reading else None

    def close(self) -> None:
        """Let go of the model, which takes much memory: for some time after widgets were removed
        Textual remembers them, and they what they showed.
        """
        self.model = self.trace = None


def look(session: "Session", target: Target, *, example: bool = False) -> Look:
    """Look at something, or at the example sentence in a chat without messages.

    Takes one pass of the model. Raises ValueError in words when the text does not fit.
    """
    from chatapp.lab.inspectable import inspectable

    model, reading = session.model, None if example else _reading(session, target)
    if reading is None:
        ids = tuple(model.tokenizer.encode(EXAMPLE))
        start = len(ids)
    else:
        ids, start = (*reading.prompt.ids, *reading.reply_ids), len(reading.prompt.ids)
    opened = inspectable(model)
    trace = None if opened is None else opened.inspect(ids)
    drawn = reading.drawn if reading else ()
    return Look(
        Tokens.of(trace) if trace else Tokens.of_served(ids, start, drawn, model.tokenizer),
        start,
        reading,
        template=_layout(session) if reading else "",
        is_draft=reading is not None and target.message_id is None and bool(target.draft),
        reason=""
        if opened
        else f"The model {model.name} cannot be inspected: only its text is known.",
        model=opened,
        trace=trace,
    )


def _reading(session: "Session", target: Target) -> "Reading | None":
    """What the model reads for a target; None when there is neither message nor draft."""
    from chatapp.dialogue.reading import draft, read

    if target.message_id is not None:
        return read(session, target.message_id)
    if target.draft:
        return draft(session, target.draft, target.instead_of)
    messages = session.chat.messages
    return read(session, messages[-1].id) if messages else None


def _layout(session: "Session") -> str:
    return f"{'prompt file' if session.chat.basis.prompt else 'template'} {session.layout}"


@dataclass
class Compute(Message):
    """A view wants `work` done on a thread, and then `show` with what it gives.

    fail: is told instead, in words, why it could not be done. slot: a newer request of the
    same name makes this one void; "" is never void.
    """

    work: Callable[[], Any]
    show: Callable[[Any], None]
    fail: Callable[[str], None]
    slot: str = ""


@dataclass
class Branch(Message):
    """The user wants another reply that begins with the tokens `begin`."""

    message_id: int
    begin: tuple[int, ...]


class View(Vertical):
    """One tab. hint: its main keys, in words."""

    hint = ""

    def legend(self) -> Content:
        """What its colours say; empty when it says so itself."""
        return Content()

    def show(self, look: Look) -> None:
        """Show another text."""
        raise NotImplementedError

    def take_focus(self) -> None:
        """Give the keys to the first widget that takes them."""
        for widget in self.query("*"):
            if widget.can_focus and widget.display:
                widget.focus()
                return
