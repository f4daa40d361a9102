"""What a turn yields: that it started, and around its tokens the calls of tools.

Invariant: each `Calling` is followed by its `Called`, unless the reply is closed in between. The
end or failure of one reply does not affect the others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from chatapp.common.unforeseen import INTERRUPTS
from chatapp.dialogue.store.rows import StoredMessage
from chatapp.engine.events import Event
from chatapp.prompting.messages import Call

PARAGRAPH = "\n\n"
"""Between the texts before and after a call, if the text does not contain the call."""


@dataclass(frozen=True, slots=True)
class Calling:
    """A tool is about to be called; the user may have to allow it first.

    text: reply text before the call that no token contained; never a thought.
    """

    call: Call
    text: str = ""
    thought: None = None


@dataclass(frozen=True, slots=True)
class Called:
    """The call has ended. text: its addition to the reply's text."""

    call: Call
    text: str = ""
    thought: None = None


ReplyEvent = Event | Calling | Called


@dataclass(frozen=True, slots=True)
class Started:
    """The first event of a turn: everything is stored, and generation begins.

    message: the reply's row. user_message: the user's, when this turn added one.
    prompt_tokens: the prompt's length. dropped: how many old messages are out of context.
    """

    message: StoredMessage
    user_message: StoredMessage | None
    prompt_tokens: int
    dropped: int


SessionEvent = Started | ReplyEvent

_Event = TypeVar("_Event")


def interleaved(
    replies: Sequence[Iterator[_Event]],
) -> Iterator[tuple[int, _Event | BaseException]]:
    """The events of each reply with its number, from 0: one of each at a time, the first one first.

    An exception is the last event of its reply.
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
