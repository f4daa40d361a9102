"""The values that the store returns: rows of its tables.

Invariant: a field has the name of its column, so a statement may list its columns in any order, and
new columns are possible.
"""

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from chatapp.common.foreign import parse_json
from chatapp.dialogue.documents.sources import Source
from chatapp.prompting.messages import Call, Role
from chatapp.tasks.files.documents import DocumentSet

Status = Literal["complete", "partial", "stopped", "error"]
Verdict = Literal["left", "right", "equal", "both bad"]

_TITLE_LENGTH = 60
_SENTENCE = re.compile(r".{11,}?[.!?](?= )")
_GREETINGS = {"hi", "hello", "hey", "hi there", "hello there", "good morning", "good evening"}
"""First messages that say nothing about the subject of a chat."""


@dataclass(frozen=True, slots=True)
class Basis:
    """A chat's instructions, prompt file and template.

    system: its instructions; None for those of its prompt file or template. prompt: the prompt file
    into which its messages are inserted, by its name in the library or its path. asked_template:
    its template for models without one of their own. Both are "" for none.
    """

    system: str | None = None
    prompt: str = ""
    asked_template: str = ""


@dataclass(frozen=True, slots=True)
class StoredChat:
    """A chat without its messages. Times are unix seconds; `leaf_id` ends its current path.

    deleted: when it was moved to the bin; None outside the bin. For system, prompt and
    asked_template see `Basis`. markdown: its replies are shown as Markdown. model: the model of its
    last reply. chosen: the sampling parameters set for it, by name. documents: its documents, or
    None. tools: the names of those that its model may call; allowed_tools: the permissions that the
    user gave for this chat (see `Tool.permission`). tags: words that begin with "#", between
    spaces. origin: what an imported chat is known by; "" for one that began here.
    """

    id: int
    title: str
    system: str | None
    template: str
    model: str
    created: float
    updated: float
    leaf_id: int | None
    archived: bool = False
    deleted: float | None = None
    prompt: str = ""
    asked_template: str = ""
    markdown: bool = False
    chosen: dict[str, Any] = field(default_factory=dict)
    documents: DocumentSet | None = None
    tools: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] = ()
    tags: str = ""
    origin: str = ""

    @classmethod
    def of(cls, row: sqlite3.Row) -> "StoredChat":
        """A row of `chats`, whose chosen parameters, documents and tools are JSON."""
        flags = {name: bool(row[name]) for name in ("archived", "markdown")}
        stored = parse_json(row["documents"] or "null")
        documents = None if stored is None else DocumentSet.from_dict(stored)
        chosen = parse_json(row["chosen"])
        lists = {name: tuple(parse_json(row[name])) for name in ("tools", "allowed_tools")}
        return cls(**{**row, **flags, **lists, "chosen": chosen, "documents": documents})

    @property
    def basis(self) -> Basis:
        """Its instructions, prompt file and template."""
        return Basis(self.system, self.prompt, self.asked_template)


@dataclass(frozen=True, slots=True)
class ChatSummary:
    """An entry of the list of chats. `messages` counts those of all branches."""

    id: int
    title: str
    model: str
    messages: int
    updated: float
    archived: bool = False
    tags: str = ""

    @classmethod
    def of(cls, row: sqlite3.Row) -> "ChatSummary":
        """Some columns of a row of `chats`."""
        return cls(**{**row, "archived": bool(row["archived"])})


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to be stored; for the fields see `StoredMessage`."""

    role: Role
    text: str
    status: Status = "complete"
    thoughts: str = ""
    sources: tuple[Source, ...] = ()
    calls: tuple[Call, ...] = ()
    changes: str = ""
    original: str | None = None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message and its place among its siblings: the `sibling`th (from 1) of `siblings`.

    A reply that is still `partial` while no process writes it belongs to a process that died.
    thoughts: the model's thoughts before a reply, which are not part of its text, with their number
    of tokens. sources: the passages of documents in the reply's prompt. calls: of tools, within it.
    remark: how the reply was generated, in words, such as the probability of every label.
    changes: what was changed inside the model while it was generated, in words; "" for nothing.
    original: the text that the model wrote, of a reply that the user has edited; None if unedited.
    """

    id: int
    chat_id: int
    parent_id: int | None
    role: Role
    text: str
    status: Status
    created: float
    sibling: int
    siblings: int
    thoughts: str = ""
    thought_tokens: int = 0
    sources: tuple[Source, ...] = ()
    calls: tuple[Call, ...] = ()
    remark: str = ""
    changes: str = ""
    original: str | None = None

    @property
    def is_edited(self) -> bool:
        """Whether its text is the user's, not the model's."""
        return self.original is not None

    @property
    def notes(self) -> str:
        """What there is to say about how it was generated."""
        return " · ".join(filter(None, ("edited" * self.is_edited, self.changes, self.remark)))

    @classmethod
    def of(cls, row: sqlite3.Row) -> "StoredMessage":
        """A row of `messages`, whose sources and calls are JSON."""
        sources = tuple(Source(**source) for source in parse_json(row["sources"]))
        calls = tuple(Call(**call) for call in parse_json(row["calls"]))
        return cls(**{**row, "sources": sources, "calls": calls})


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a reply's generation, in addition to the chat so far.

    opening: the messages before the chat as (role, text): its instructions, and a prompt file's
    demonstrations. prefix: inserted by the prompt file before a message. goes_on: the prompt
    contained the chat so far. is_label: the reply is one of the prompt file's labels. tools: those
    that the model could call, in the form of `Tool.to_dict`.
    """

    opening: tuple[tuple[Role, str], ...] = ()
    prefix: str = ""
    goes_on: bool = True
    is_label: bool = False
    tools: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, stored: str) -> "Conditions":
        """From the column `conditions` of `turns`, which is JSON."""
        fields = parse_json(stored)
        opening = tuple((role, text) for role, text in fields["opening"])
        return cls(**{**fields, "opening": opening, "tools": tuple(fields["tools"])})


class Origin(TypedDict):
    """The origin of a reply. conditions: a `Conditions`, as a dictionary."""

    model: str
    template: str
    prompt: str
    sampling: dict[str, Any]
    seed: int
    conditions: dict[str, Any]


class Ending(TypedDict):
    """How a generation ended. Times are in seconds."""

    reason: str
    prompt_tokens: int
    reused_tokens: int
    reply_tokens: int
    time_to_first_token: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation into one message; a continued message has several.

    The fields of its `Ending` are None until it ends.
    """

    id: int
    message_id: int
    model: str
    template: str
    prompt: str
    sampling: dict[str, Any]
    seed: int
    created: float
    reason: str | None
    prompt_tokens: int | None
    reused_tokens: int | None
    reply_tokens: int | None
    time_to_first_token: float | None
    seconds: float | None

    @classmethod
    def of(cls, row: sqlite3.Row) -> "Generation":
        """A row of `turns`, whose sampling is JSON."""
        return cls(**{**row, "sampling": parse_json(row["sampling"])})


@dataclass(frozen=True, slots=True)
class Feedback:
    """The user's feedback on a reply. Its prompt is in the reply's generations.

    reply: its text at the last feedback. thumb: 1 is good, -1 is bad, 0 is none. rank: its place
    among the replies to the same message, 1 is the best; None is not ranked. correction: the text
    that it should have been, if the user has written one.
    """

    message_id: int
    reply: str
    thumb: int
    rank: int | None
    correction: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two replies to one message that the user has compared, and which one is better.

    Their prompts are in their generations, their texts in their feedback.
    """

    left_id: int
    right_id: int
    choice: Verdict


@dataclass(frozen=True, slots=True)
class Deleted:
    """Deleted messages, with everything that `restore_messages` needs.

    count: of the messages. leaf_id: the end of the chat's path. rows: by table.
    """

    chat_id: int
    parent_id: int | None
    count: int
    leaf_id: int
    rows: dict[str, list[sqlite3.Row]]


@dataclass(frozen=True, slots=True)
class Hit:
    r"""A search result. In `snippet`, \\x02 and \\x03 enclose each match."""

    chat_id: int
    message_id: int
    title: str
    snippet: str
    role: Role
    updated: float


def own_origin(chat_id: int, created: float) -> str:
    """What a chat of this program is known by in another file. created: in seconds."""
    return f"chatapp:{chat_id}:{int(created * 1000)}"


def title_after(title: str, text: str) -> str:
    """A chat's title after a user's message. An existing title stays if it is not a greeting; else
    it is the first sentence of the message's first paragraph, cut after a word.
    """
    if title and title.strip(" .,!?").lower() not in _GREETINGS:
        return title
    paragraph, _, rest = text.strip().partition("\n\n")
    if paragraph.strip(" .,!?").lower() in _GREETINGS:
        paragraph = f"{paragraph} {rest}"
    line = " ".join(paragraph[: 8 * _TITLE_LENGTH].split())
    if (sentence := _SENTENCE.match(line)) is not None:
        line = sentence[0].removesuffix(".")
    if len(line) <= _TITLE_LENGTH:
        return line
    words, _, _ = line[:_TITLE_LENGTH].rpartition(" ")
    return (words or line[: _TITLE_LENGTH - 1]) + "…"
