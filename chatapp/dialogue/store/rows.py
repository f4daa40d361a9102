"""What the store gives back: rows of its tables as values.

Keep: a row is read by its columns' names, which are those of the fields; so a statement may
name its columns in any order, and a column that is added later is in nobody's way.
"""

import json
import sqlite3
from dataclasses import dataclass, field
from typing import Any, Literal

from chatapp.passages.sources import Source
from chatapp.prompting.files.documents import DocumentSet
from chatapp.prompting.messages import Call, Role

Status = Literal["complete", "partial", "stopped", "error"]
Verdict = Literal["left", "right", "equal", "both bad"]


@dataclass(frozen=True, slots=True)
class Basis:
    """What a chat is held with; nothing of its own at first.

    system: its instructions; None for those of its prompt file or template. prompt: the prompt
    file its messages are put into, by its name in the library or its path. asked_template: the
    template it asks for where a model has none of its own. Both are "" where there is none.
    """

    system: str | None = None
    prompt: str = ""
    asked_template: str = ""


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat without its messages. Times are unix seconds; `leaf_id` ends its current path.

    deleted: when it was put into the bin; None while it was not. For system, prompt and
    asked_template see `Basis`. markdown: its replies are shown as Markdown. model: what its last
    reply came from. chosen: the sampling parameters set for it, by name. documents: those it
    draws on; None without. tools: the names of those its model may call; allowed_tools: the keys
    of those that the user has allowed for all of it (see `Tool.key`). reward: the name of the
    reward model that scores its replies; "" without.
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
    reward: str = ""

    @classmethod
    def of(cls, row: sqlite3.Row) -> "Chat":
        """A row of `chats`, whose chosen parameters, documents and tools are JSON."""
        flags = {name: bool(row[name]) for name in ("archived", "markdown")}
        asked = json.loads(row["documents"] or "null")
        documents = None if asked is None else DocumentSet.from_dict(asked)
        chosen = json.loads(row["chosen"])
        lists = {name: tuple(json.loads(row[name])) for name in ("tools", "allowed_tools")}
        return cls(**{**row, **flags, **lists, "chosen": chosen, "documents": documents})

    @property
    def basis(self) -> Basis:
        """What it is held with."""
        return Basis(self.system, self.prompt, self.asked_template)


@dataclass(frozen=True, slots=True)
class ChatSummary:
    """A line of the list of chats. `messages` counts those of all branches."""

    id: int
    title: str
    model: str
    messages: int
    updated: float
    archived: bool = False

    @classmethod
    def of(cls, row: sqlite3.Row) -> "ChatSummary":
        """Some columns of a row of `chats`."""
        return cls(**{**row, "archived": bool(row["archived"])})


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message and its place among its siblings: the `sibling`th (from 1) of `siblings`.

    A reply that is still `partial` when nobody writes it belongs to a process that died.
    thoughts: what was thought before a reply, which is no part of its text, of so many tokens.
    sources: the passages of documents that were found for a reply. calls: of tools, within it.
    remark: how a reply came about, in words, such as how probable each label was.
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

    @classmethod
    def of(cls, row: sqlite3.Row) -> "StoredMessage":
        """A row of `messages`, whose sources and calls are JSON."""
        sources = tuple(Source(**source) for source in json.loads(row["sources"]))
        calls = tuple(Call(**call) for call in json.loads(row["calls"]))
        return cls(**{**row, "sources": sources, "calls": calls})


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation into one message, which has several of them when it was continued.

    What `finish_generation` sets is None until then.
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
        return cls(**{**row, "sampling": json.loads(row["sampling"])})


@dataclass(frozen=True, slots=True)
class Feedback:
    """What the user thinks of a reply. What it was drawn from is in the reply's generations.

    reply: its text when it was judged last. thumb: 1 is good, -1 is bad, 0 is not said.
    rank: its place among the replies to the same message, 1 is the best; None is not ranked.
    correction: the text it should have been, if the user has written that.
    """

    message_id: int
    reply: str
    thumb: int
    rank: int | None
    correction: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two replies to one message that the user has set side by side, and which is better.

    What each was drawn from is in its generations, its text in its feedback.
    """

    left_id: int
    right_id: int
    choice: Verdict


@dataclass(frozen=True, slots=True)
class Deleted:
    """Messages that were deleted, with all that `restore_messages` puts back.

    count: how many. leaf_id: where the chat's path ended. rows: of each table, as they were.
    """

    chat_id: int
    parent_id: int | None
    count: int
    leaf_id: int
    rows: dict[str, list[sqlite3.Row]]


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that was found. In `snippet`, \\x02 and \\x03 stand around each found word."""

    chat_id: int
    message_id: int
    title: str
    snippet: str
    role: Role
    updated: float
