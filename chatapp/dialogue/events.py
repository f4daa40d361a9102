"""What a reply yields besides its tokens where a tool is called.

Keep: each `Calling` is followed by its `Called`, unless the reply is closed in between.
"""

from dataclasses import dataclass

from chatapp.engine.events import Event
from chatapp.prompting.calls import Call

PARAGRAPH = "\n\n"
"""Between what was said before a call and after it, where the text does not hold the call."""


@dataclass(frozen=True, slots=True)
class Calling:
    """A tool is about to be called; the user may have to allow it first.

    text: what the reply said before it that no token has brought; never a thought.
    """

    call: Call
    text: str = ""
    thought: None = None


@dataclass(frozen=True, slots=True)
class Called:
    """The call is over. text: what enters the reply's own text with it."""

    call: Call
    text: str = ""
    thought: None = None


ReplyEvent = Event | Calling | Called
