"""A chat as messages, a prompt as segments, and what fits the context window.

Messages are roles and texts before any template; they contain no marker of a template. A thought is
stored apart from its message.

Invariants: the oldest whole turns are dropped first, in steps of at least a quarter of the window,
and the steps depend only on the turns before them. So the next prompt nearly always begins like the
last one, whose keys and values are cached, and a reopened chat leaves out the same turns. The
concatenated texts of segments are the exact string that the model sees, and segments are encoded
one by one, so the tokens of a prompt are a prefix of the tokens of that prompt with its reply.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple


@dataclass(frozen=True, slots=True)
class Budget:
    """How a prompt fits the window.

    dropped: number of oldest turns left out. prompt: tokens of the remaining prompt. room: tokens
    left for the reply; 0 or less means that even the instructions and the newest message alone do
    not fit.
    """

    dropped: int
    prompt: int
    room: int


def fit(
    *, window: int, instructions: int, history: Sequence[int], newest: int, reserve: int
) -> Budget:
    """Choose which turns of the history to leave out.

    window: the longest sequence of the model. instructions, newest: never left out. history: the
    length of each whole turn, a message with its reply, oldest first. reserve: the least room for
    the reply. All counts are in tokens.
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

    `document` is a passage before a question, `tool` the result of a tool. `marker` is text of the
    template ("User:"). `special` is the name of a special token, and `end` the model's end-of-text
    token: their texts are only shown; each is encoded as its one token, never by its letters.
    name: of the field of a prompt file whose value it is; it changes nothing in the prompt.
    """

    kind: Kind
    text: str
    name: str = field(default="", compare=False)


END_OF_TEXT = Segment("end", "<|endoftext|>")

OWN = "own"
"""The name of the chat template of a model's tokenizer."""


def text_of(segments: Iterable[Segment]) -> str:
    """The prompt as one string."""
    return "".join(segment.text for segment in segments)


def set_apart(segments: Sequence[Segment], passages: Sequence[str]) -> list[Segment]:
    """Make each passage in the last message of a prompt a segment of its own.

    passages: the texts before the question in that message, in a row. Where a template has changed
    the message, the segments stay unchanged.
    """
    own = list(segments)
    users = [place for place, segment in enumerate(own) if segment.kind == "user"]
    if not users or not passages:
        return own
    before, match, question = own[users[-1]].text.partition("".join(passages))
    if match:
        opening = [Segment("marker", before)] if before else []
        parts = [Segment("document", passage) for passage in passages]
        own[users[-1] : users[-1] + 1] = [*opening, *parts, Segment("user", question)]
    return own


CallStatus = Literal["running", "done", "failed", "refused", "stopped"]


@dataclass(frozen=True, slots=True)
class Requested:
    """A call in the words of the model."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool within a reply.

    result: what the model receives. at: number of characters of the reply's text before it. inside:
    number of characters of that text, from `at` on, that are the result, if the call is part of the
    text; 0 if the template writes it.
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

    begin: the mark before a call. bare: whether a reply that is such an object from its first
    character on is a call, too.
    """

    begin: str
    bare: bool = False


@dataclass(frozen=True, slots=True)
class InlineCalls:
    """Calls in the text itself, with their result: `<<48*76=3648>>`.

    tool, argument: which tool and argument get the text between `begin` and `end`; `close` follows
    the result.
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
    """One message of a chat. A `system` message, if any, comes first.

    thoughts: the model's thoughts before a reply. call: the tool call that ends an `assistant`
    message; the `tool` message after it has the result. further: more calls made at once, whose
    results follow in their order. learnt: whether training has labels for a reply.
    """

    role: Role
    text: str
    thoughts: str = ""
    call: Call | None = None
    further: tuple[Call, ...] = ()
    learnt: bool = field(default=True, compare=False)


TEMPLATE = -1
"""The origin of what a template writes itself; others are numbers of messages."""


class Text(NamedTuple):
    """A text of messages in the values of a template: its pieces, each with its origin."""

    pieces: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        return "".join(text for _, text in self.pieces)


def text_by(origin: int, value: Any, is_kept: Callable[[str], object] = lambda text: False) -> Any:
    """Mark the texts in a JSON value as those of one origin, except those that are kept plain."""
    if isinstance(value, str):
        return value if is_kept(value) else Text(((origin, value),))
    if isinstance(value, Mapping):
        return {
            text_by(origin, name, is_kept): text_by(origin, part, is_kept)
            for name, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [text_by(origin, part, is_kept) for part in value]
    return value


_NAME = re.compile(r"[\w.$-]*")


def schema_by(origin: int, value: Any, special: Collection[str]) -> Any:
    """Like `text_by`, but plain names stay, which templates look for: "type", "string". A name that
    holds a special token is a text.
    """

    def is_name(text: str) -> bool:
        return bool(_NAME.fullmatch(text)) and not any(token in text for token in special)

    return text_by(origin, value, is_name)


def to_json(value: Any) -> Any:
    """Convert a value with marked texts to JSON for `template_program.answer`."""
    match value:
        case Text():
            return {"pieces": value.pieces}
        case Mapping():
            return {"items": [[to_json(name), to_json(part)] for name, part in value.items()]}
        case list() | tuple():
            return [to_json(part) for part in value]
    return value
