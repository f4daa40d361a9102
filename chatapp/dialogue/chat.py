"""The tools of one chat: which are on, and who is asked before one runs.

Keep: they are looked up anew for every reply, so that a file that was changed or taken away counts
from then on.

The messages of a stored chat as a prompt has them.

Keep: what is stored alone decides; a reply becomes the same part of every prompt.

Passages of documents for a message: looked up, and as many as fit its prompt.

Keep: documents stay open from one message to the next while the same ones are asked for, so that
only what has changed is read again.

The tools that the user has allowed for good.

Keep: a permission is for what a tool was when it was given (see `Tool.key`); a file that cannot be
read allows nothing.

Whether a tool may run: asked of the user, and remembered as far as the user says.

Keep: what is not answered with a yes is a no.
"""

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from chatapp.common.paths import allowed_tools_path
from chatapp.common.userfiles import UserError, read_json_object, reason, write_whole
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.rows import StoredMessage
from chatapp.dialogue.tool_calls import Toolbox, out_of_reach
from chatapp.dialogue.writers.prompt import Exchange, Writer
from chatapp.engine.model import LanguageModel
from chatapp.passages.index import Progress
from chatapp.passages.search import Documents
from chatapp.passages.sources import Source
from chatapp.prompting.files.documents import DocumentsError, DocumentSet
from chatapp.prompting.messages import CallPattern
from chatapp.tools.mcp_servers import Servers
from chatapp.tools.registry import Registry, find_tools
from chatapp.tools.tool import Arguments, Tool, ToolError


def exchanges_of(path: Iterable[StoredMessage]) -> list[Exchange]:
    """A chat from its first message on."""
    exchanges: list[Exchange] = []
    for message in path:
        if message.role == "user":
            exchanges.append(Exchange(message.text))
        else:
            exchanges[-1] = replace(exchange_of(message), user=exchanges[-1].user)
    return exchanges


def exchange_of(reply: StoredMessage) -> Exchange:
    """A reply as part of a prompt, without the message that it answers."""
    return Exchange("", reply.text, reply.thoughts, calls=reply.calls)


def up_to_call(reply: StoredMessage) -> StoredMessage:
    """A reply as it was when its last call had ended; as it is where there is none."""
    if not reply.calls:
        return reply
    last = reply.calls[-1]
    return replace(reply, text=reply.text[: last.at + last.inside])


class Grounding:
    """Looks up what replies of one model are grounded in."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._documents: Documents | None = None

    def sources(
        self,
        asked: DocumentSet,
        writer: Writer,
        system: str | None,
        message: str,
        *,
        max_tokens: int,
        progress: Progress | None = None,
    ) -> tuple[Source, ...]:
        """The passages found for a message, those that fit its prompt numbered.

        writer, system, max_tokens: of the prompt; see `Writer.sources`.
        Raises DocumentsError and ModelError when the documents cannot be searched, and
        MessageTooLong.
        """
        if self._documents is None or self._documents.asked != asked:
            self._documents = Documents(asked, self._model)
        passages = self._documents.search(message, progress)
        return writer.sources(system, message, passages, max_tokens=max_tokens)


def until(cancel: threading.Event | None) -> Progress:
    """Lets reading go on until `cancel` is set; then it raises DocumentsError."""

    def go_on(done: int, of: int) -> None:
        if cancel is not None and cancel.is_set():
            raise DocumentsError("stopped while documents were read; that goes on next time")

    return go_on


def is_allowed(tool: Tool) -> bool:
    """Whether the user has allowed a tool for good."""
    return tool.key in _keys()


def allow(tool: Tool) -> None:
    """Allow a tool for good. Raises ToolError when that cannot be written down."""
    keys = sorted({*_keys(), tool.key})
    try:
        write_whole(allowed_tools_path(), json.dumps({"allowed": keys}, indent=2) + "\n")
    except OSError as error:
        raise ToolError(f"{allowed_tools_path()}: cannot be written: {reason(error)}") from None


def _keys() -> list[str]:
    try:
        keys = read_json_object(allowed_tools_path()).get("allowed")
    except (OSError, UserError):
        return []
    return [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else []


Decision = Literal["once", "chat", "always", "no"]
"""For this call, for all of this chat, for this tool in every chat, or not at all."""

Ask = Callable[[Tool, Arguments, threading.Event], Decision]
"""Asks the user. Comes back soon after the event is set."""


def never(tool: Tool, arguments: Arguments, cancel: threading.Event) -> Decision:
    """Where there is nobody to ask."""
    return "no"


class Permission:
    """Gives a chat's tools leave to run."""

    def __init__(self, store: Store, chat_id: int, ask: Ask) -> None:
        self._store = store
        self._chat_id = chat_id
        self._ask = ask

    def __call__(self, tool: Tool, arguments: Arguments, cancel: threading.Event) -> bool:
        """Whether this call may run. Raises StoreError and ToolError when an answer that is to
        be remembered cannot be."""
        allowed = self._store.chat(self._chat_id).allowed_tools
        if tool.key in allowed or is_allowed(tool):
            return True
        decision = self._ask(tool, arguments, cancel)
        if decision == "chat":
            self._store.allow_tool(self._chat_id, tool.key)
        elif decision == "always":
            allow(tool)
        return decision != "no"


class ChatTools:
    """names: of those that the model may call. ask: asks the user whether one may run that is not
    allowed yet. servers: those of the chat that run already. documents, wherever they are asked
    for: those of the chat, which a tool searches.
    """

    def __init__(self, store: Store, names: Sequence[str], servers: Servers | None = None) -> None:
        self.names = tuple(names)
        self.ask: Ask = never
        self._store = store
        self._servers = servers or Servers()

    def close(self) -> None:
        """End the servers of tools."""
        self._servers.close()

    def find(self, documents: DocumentSet | None) -> Registry:
        """All tools that there are."""
        return find_tools(documents, self._servers)

    def choose(
        self, names: Sequence[str], documents: DocumentSet | None, pattern: CallPattern
    ) -> None:
        """Let the model call these. pattern: how it calls tools.

        Raises ToolError for one that there is not, or that the model has no way to call.
        """
        chosen = tuple(self.find(documents).chosen(names))
        if problem := out_of_reach(pattern, chosen):
            raise ToolError(problem)
        self.names = chosen

    def check(self, documents: DocumentSet | None, cancel: threading.Event | None = None) -> None:
        """Raises ToolError for one that is gone, or whose file is no good any more."""
        if self.names:
            self.find(documents).chosen(self.names, cancel)

    def told(self, documents: DocumentSet | None) -> list[dict[str, Any]]:
        """What the model is told of those that there are."""
        if not self.names:
            return []
        tools = self.find(documents).tools
        return [tools[name].to_dict() for name in self.names if name in tools]

    def is_all_told(self, documents: DocumentSet | None) -> bool:
        """Whether `told` leaves out none because its server has not been asked yet."""
        if not self.names:
            return True
        registry = self.find(documents)
        return not any(registry.may_have(name) for name in self.names)

    def toolbox(self, documents: DocumentSet | None, chat_id: int) -> Toolbox:
        """The tools as they are now. Raises ToolError for one that is gone."""
        tools = self.find(documents).chosen(self.names)
        return Toolbox(tools, Permission(self._store, chat_id, self.ask))
