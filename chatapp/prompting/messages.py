"""A chat as roles and texts, before any template has touched it.

Keep: a text is that of the message alone, with no marker of a template, and without what was
thought before it.

What of a chat fits the context window, and what is left out. Pure arithmetic on counts.

Keep: the oldest whole turns go first, in steps of at least a quarter of the window, and where the
steps lie depends on the turns before them alone. So the prompt of the next turn nearly always
starts like that of the last one, whose keys and values the model still holds, and a chat that is
opened again leaves out what it left out before.

A prompt as a list of segments, so that every character of it has a known origin.

Keep: the concatenated texts are the exact string the model sees, and segments are encoded into
tokens one by one, which makes the tokens of a prompt a prefix of the tokens of the same
prompt with its reply.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Budget:
    """How a prompt is made to fit.

    dropped: how many of the oldest turns are left out.
    prompt: tokens of the prompt that remains.
    room: tokens the window leaves for the reply; none or less means that even the
        instructions and the newest message alone do not fit.
    """

    dropped: int
    prompt: int
    room: int


def fit(
    *, window: int, instructions: int, history: Sequence[int], newest: int, reserve: int
) -> Budget:
    """Choose which turns of the history to leave out.

    window: longest sequence of the model. instructions, newest: what is never left out.
    history: the length of each whole turn, a message with its reply, oldest first.
    reserve: what the reply should at least find room for. All counts are in tokens.
    """
    fixed = instructions + newest
    excess = fixed + sum(history) + reserve - window
    step = max(1, window // 4)
    dropped = freed = since_step = 0
    for position, length in enumerate(history, start=1):
        if freed >= excess:
            break
        since_step += length
        if since_step >= step or position == len(history):
            freed, since_step, dropped = freed + since_step, 0, position
    prompt = fixed + sum(history) - freed
    return Budget(dropped, prompt, window - prompt)


Kind = Literal[
    "instruction",
    "example",
    "document",
    "user",
    "assistant",
    "thinking",
    "tool",
    "marker",
    "special",
    "end",
]


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt.

    `document` is a passage that stands before a question, `tool` what a tool has told. `marker`
    is text of the template ("User:"). `special` is the name of a special token, and `end` stands
    for the model's end-of-text token: their texts are what is shown, and each becomes its one
    token, never its letters.
    """

    kind: Kind
    text: str


END_OF_TEXT = Segment("end", "<|endoftext|>")


def text_of(segments: Iterable[Segment]) -> str:
    """The prompt as the one string it is."""
    return "".join(segment.text for segment in segments)


CallStatus = Literal["running", "done", "failed", "refused", "stopped"]


@dataclass(frozen=True, slots=True)
class Requested:
    """A call as the model wrote it."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool within a reply.

    result: what the model is told. at: how many characters of the reply's text come before it.
    inside: how many characters of that text, from `at` on, are the result, where the call is
    itself part of the text; 0 where the template writes it.
    """

    name: str
    arguments: Mapping[str, Any]
    result: str
    status: CallStatus
    at: int
    inside: int = 0


@dataclass(frozen=True, slots=True)
class JSONCalls:
    """Calls as JSON objects of a name and its arguments.

    begin: the mark before one. bare: whether a reply that is such an object from its first
    character on is one, too.
    """

    begin: str
    bare: bool = False


@dataclass(frozen=True, slots=True)
class InlineCalls:
    """Calls in the text itself, with their result: `<<48*76=3648>>`.

    tool, argument: what is called with the text between `begin` and `end`; the result is followed
    by `close`.
    """

    tool: str
    argument: str
    begin: str
    end: str
    close: str


CallPattern = JSONCalls | InlineCalls


Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. A `system` message, if any, comes first.

    thoughts: what was thought before a reply. call: of a tool, that an `assistant` message ends
    in; the `tool` message after it has the result.
    """

    role: Role
    text: str
    thoughts: str = ""
    call: Call | None = None
