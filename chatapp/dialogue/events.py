"""What a reply yields besides its tokens where a tool is called.

Keep: each `Calling` is followed by its `Called`, unless the reply is closed in between.

Several replies drawn in turn, on one thread.

Keep: what befalls one of them, its end or its failure, is its own alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from chatapp.common.unforeseen import INTERRUPTS
from chatapp.engine.events import Event
from chatapp.prompting.messages import Call

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


_Event = TypeVar("_Event")


def interleaved(
    replies: Sequence[Iterator[_Event]],
) -> Iterator[tuple[int, _Event | BaseException]]:
    """The events of each reply with its number, from 0: one of each at a time, the first one first.

    An exception is the last of its reply's.
    """
    going_on = dict(enumerate(replies))
    while going_on:
        for number, events in list(going_on.items()):
            try:
                event = next(events)
            except StopIteration:
                del going_on[number]
            except INTERRUPTS:
                raise
            except BaseException as error:
                del going_on[number]
                yield number, error
            else:
                yield number, event
