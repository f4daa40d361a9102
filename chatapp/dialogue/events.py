"""What a turn takes and yields: its options, and around its tokens the calls of tools."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from chatapp.common.parameters import Sampling
from chatapp.common.unforeseen import INTERRUPTS
from chatapp.engine.decoder.interventions import UNCHANGED, Interventions
from chatapp.engine.events import Event

if TYPE_CHECKING:
    from chatapp.dialogue.store.rows import StoredMessage
    from chatapp.dialogue.tool_calls import Toolbox
    from chatapp.dialogue.writers.prompt import Prompt
    from chatapp.engine.constraint.constraint import Constraint
    from chatapp.engine.model import Generate
    from chatapp.prompting.messages import Call

PARAGRAPH = "\n\n"
"""Between the texts before and after a call, if the text does not contain the call."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a reply is to be like.

    sampling: how it is drawn. cancel: setting it ends the reply within one token. system:
    instructions instead of the layout's own. constraint: what it may look like; not together with
    tools, whose calls have their own. toolbox: the tools that the model may call. changes: inside
    the model; directions are added from the reply's first token on. forced: its first tokens.
    stop: strings that end it, besides the layout's. top: the number of alternatives with each
    token. generate: instead of the model's own.
    """

    sampling: Sampling
    cancel: threading.Event | None = None
    system: str | None = None
    constraint: "Constraint | None" = None
    toolbox: "Toolbox | None" = None
    changes: Interventions = UNCHANGED
    forced: Sequence[int] = ()
    stop: Sequence[str] = ()
    top: int = 0
    generate: "Generate | None" = None


@dataclass(frozen=True, slots=True)
class Calling:
    """A tool is about to be called; the user may have to allow it first.

    text: reply text before the call that no token contained; never a thought.
    """

    call: "Call"
    text: str = ""
    thought: None = None


@dataclass(frozen=True, slots=True)
class Called:
    """The call has ended. text: its addition to the reply's text."""

    call: "Call"
    text: str = ""
    thought: None = None


@dataclass(frozen=True, slots=True)
class PromptWritten:
    """What the model continues now: for a new reply, or after the result of a call."""

    prompt: "Prompt"
    text: str = ""
    thought: None = None


ReplyEvent = Event | Calling | Called
TurnEvent = PromptWritten | ReplyEvent


@dataclass(frozen=True, slots=True)
class Started:
    """The first event of a turn: everything is stored, and generation begins.

    message: the reply's row. user_message: the user's, when this turn added one.
    prompt_tokens: the prompt's length. dropped: how many old messages are out of context.
    """

    message: "StoredMessage"
    user_message: "StoredMessage | None"
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
