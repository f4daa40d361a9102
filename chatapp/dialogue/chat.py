"""A chat without a model: its messages, and the user's choices for it."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from chatapp.common.parameters import Choices, known_values
from chatapp.common.userfiles import UserError
from chatapp.dialogue.documents.sources import Source
from chatapp.dialogue.store import Store
from chatapp.dialogue.store.database import Gone
from chatapp.dialogue.store.rows import Basis, StoredMessage
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.decoder.interventions import UNCHANGED
from chatapp.tasks.files.documents import DocumentSet

if TYPE_CHECKING:
    from chatapp.dialogue.tools.mcp_servers import Servers
    from chatapp.dialogue.tools.registry import Registry
    from chatapp.dialogue.tools.tool import Arguments, PermissionRequest, Tool

Decision = Literal["once", "chat", "always", "no"]
"""For this call, for this chat, for this tool in every chat, or not at all."""

Ask = Callable[["PermissionRequest", threading.Event], Decision]
"""Asks the user whether a tool may run. Returns soon after the event is set."""


def never(request: "PermissionRequest", cancel: threading.Event) -> Decision:
    """The decision when there is nobody to ask."""
    return "no"


class Chat:
    """A stored chat, or a new one, which is stored with its first message.

    id: its row in the store; None while it is new. basis: its instructions, prompt file and
    requested template. documents: those it uses in addition to its prompt file's. tools: the
    names of those that the model may call. choices: the sampling parameters; those chosen in
    this chat are stored. markdown: whether its replies are shown as Markdown. messages: its
    current path, oldest first. ask: asks the user whether a tool may run that is not allowed
    yet. interventions: what is changed inside the model from the next reply on; not stored.
    """

    def __init__(
        self,
        store: Store,
        id: int | None = None,
        *,
        basis: Basis | None = None,
        documents: DocumentSet | None = None,
        tools: Sequence[str] = (),
        choices: Choices | None = None,
        markdown: bool = False,
    ) -> None:
        """Open the chat `id`, whose stored facts apply, or begin one with these.

        Raises StoreError when there is no such chat.
        """
        self.store = store
        self.id = id
        self.basis = basis or Basis()
        self.documents = documents
        self.tools = tuple(tools)
        self.choices = choices or Choices()
        self.markdown = markdown
        self.messages: list[StoredMessage] = []
        self.ask: Ask = never
        self.interventions = UNCHANGED
        self.constraint: Constraint | None = None
        self._servers: Servers | None = None
        if id is not None:
            row = store.chat(id)
            self.basis, self.documents, self.tools = row.basis, row.documents, row.tools
            self.choices = self.choices.of("this chat", known_values(row.chosen))
            self.markdown = row.markdown
            self.messages = store.path(id)

    def apart(self) -> "Chat":
        """A copy for a parallel session: with its own messages and servers, and without permission
        to ask.
        """
        return Chat(
            self.store,
            self.id,
            basis=self.basis,
            documents=self.documents,
            tools=self.tools,
            choices=self.choices,
            markdown=self.markdown,
        )

    def go_over_to(self, id: int | None) -> "Chat":
        """Switch to another chat, to a new one (None), or to the stored state of this one.

        The result has the choices of this chat unless it has its own. For the
        same chat, the servers of its tools keep running; otherwise close this chat. Raises
        StoreError, and changes nothing, when there is no such chat.
        """
        chat = Chat(self.store, id, choices=self.choices)
        chat.ask = self.ask
        if id is not None and id == self.id:
            chat._servers = self._servers
            chat.interventions = self.interventions
            chat.constraint = self.constraint
        return chat

    def close(self) -> None:
        """End the processes that the chat has started: the servers of its tools."""
        if self._servers is not None:
            self._servers.close()

    # In the store

    def add_messages(
        self,
        parent_id: int | None,
        text: str | None,
        sources: Sequence[Source],
        *,
        template: str,
        model: str,
    ) -> tuple[StoredMessage | None, StoredMessage]:
        """Store a user's message, where there is a text, and the reply to it; return both rows.

        All are stored, including a new chat itself, or nothing. Raises StoreError.
        """
        user: StoredMessage | None = None
        with self.store.transaction():
            id = self.id if self.id is not None else self._create(template, model)
            if text is not None:
                user = self.store.add_message(id, parent_id, "user", text)
                parent_id = user.id
            reply = self.store.add_message(
                id, parent_id, "assistant", "", status="partial", sources=sources
            )
        self.id = id
        return user, reply

    def store_anew(self, template: str, model: str) -> int:
        """Store the messages of a deleted chat as a new chat; return its id.

        Raises StoreError.
        """
        with self.store.transaction():
            id = self._create(template, model)
            self.store.add_messages(id, self.messages)
        return id

    def fork(self, message_id: int | None) -> int | None:
        """Store the messages up to one, or all of the path, as a new chat; return its id.

        Returns None when there is no message. Raises StoreError.
        """
        if self.id is None or not self.messages:
            return None
        with self.store.transaction():
            row = self.store.chat(self.id)
            id = self._create(row.template, row.model)
            self.store.rename_chat(id, self.store.unique_title(id, row.title))
            self.store.set_tags(id, row.tags)
            path = self.messages if message_id is None else self.path_to(message_id)
            self.store.copy_messages(id, [message.id for message in path])
        return id

    def _create(self, template: str, model: str) -> int:
        basis = self.basis
        id = self.store.create_chat(
            system=basis.system,
            template=template,
            model=model,
            prompt=basis.prompt,
            asked_template=basis.asked_template,
            documents=self.documents,
        )
        self.store.set_tools(id, self.tools)
        self.store.set_chosen(id, self.choices.by_origin.get("this chat", {}))
        self.store.set_markdown(id, self.markdown)
        return id

    def title(self) -> str:
        """The title of the chat. Raises StoreError."""
        return "New chat" if self.id is None else self.store.chat(self.id).title

    def is_deleted(self) -> bool:
        """Whether the chat is in the bin, or no longer in the store. Raises StoreError."""
        try:
            return self.id is not None and self.store.chat(self.id).deleted is not None
        except Gone:
            return True

    def finish_reasons(self) -> dict[int, str]:
        """The finish reason of each reply by its id; "" if unknown. Raises StoreError."""
        generations = [] if self.id is None else self.store.generations(self.id)
        return {generation.message_id: generation.reason or "" for generation in generations}

    def message(self, message_id: int) -> StoredMessage:
        """A message in its known state, complete even where the store has less. Raises
        StoreError."""
        same = (message for message in self.messages if message.id == message_id)
        return next(same, None) or self.store.message(message_id)

    def go_to_sibling(self, message: StoredMessage, step: int) -> StoredMessage | None:
        """Move the chat's path in the store to the version `step` places after a message.

        Returns that version, or None where there is none. Raises StoreError.
        """
        siblings = self.store.siblings(message.id)
        index = message.sibling - 1 + step
        if not 0 <= index < len(siblings):
            return None
        sibling = siblings[index]
        self.store.set_leaf(sibling.chat_id, self.store.latest_leaf(sibling.id))
        return sibling

    def path_to(self, message_id: int | None) -> list[StoredMessage]:
        """The messages from the first to this one; none for None. Raises StoreError."""
        if message_id is None or self.id is None:
            return []
        return self.store.path(self.id, message_id)

    # The user's choices; each method raises StoreError, and then changes nothing

    def use_basis(self, basis: Basis) -> None:
        """Use other instructions, another prompt file or template."""
        self._keep(self.store.set_basis, basis)
        self.basis = basis

    def use_documents(self, documents: DocumentSet | None) -> None:
        """Use other documents from the next message on; None leaves only the prompt file's."""
        self._keep(self.store.set_documents, documents)
        self.documents = documents

    def use_tools(self, names: Sequence[str]) -> None:
        """Let the model call these tools from the next message on."""
        self._keep(self.store.set_tools, names)
        self.tools = tuple(names)

    def choose(self, choices: Choices) -> None:
        """Draw replies with other sampling parameters."""
        self._keep(self.store.set_chosen, choices.by_origin.get("this chat", {}))
        self.choices = choices

    def show_markdown(self, markdown: bool) -> None:
        """Show the replies as Markdown, or as plain text."""
        self._keep(self.store.set_markdown, markdown)
        self.markdown = markdown

    def _keep(self, write: Callable[[int, Any], None], value: object) -> None:
        if self.id is not None:
            write(self.id, value)

    # Tools

    @property
    def servers(self) -> "Servers":
        """The servers of the chat's tools, which run until the chat is closed."""
        from chatapp.dialogue.tools.mcp_servers import Servers

        self._servers = self._servers or Servers()
        return self._servers

    def find_tools(self, documents: DocumentSet | None = None) -> "Registry":
        """The available tools. documents: those of the prompt file, searched by a tool if the chat
        has none of its own.
        """
        from chatapp.dialogue.tools.registry import find_tools

        return find_tools(self.documents or documents, self.servers)

    def permits(self, tool: "Tool", arguments: "Arguments", cancel: threading.Event) -> bool:
        """Whether a tool call of a stored chat may run; asks the user if necessary.

        An answer that cannot be stored applies to this call only.
        """
        from chatapp.dialogue.tools.tool import (
            PermissionRequest,
            allow_for_good,
            allowed_for_good,
            changes_of,
        )

        assert self.id is not None
        if tool.asks_each_time:
            return self.ask(PermissionRequest(tool, arguments), cancel) != "no"
        allowed = [*self.store.chat(self.id).allowed_tools, *allowed_for_good()]
        while (permission := tool.permission) not in allowed:
            request = PermissionRequest(tool, arguments, changes_of(tool, allowed))
            decision = self.ask(request, cancel)
            if decision == "no":
                return False
            allowed.append(permission)  # unless a file has changed while the user read
            with suppress(UserError):
                if decision == "chat":
                    self.store.allow_tool(self.id, permission)
                elif decision == "always":
                    allow_for_good(permission)
        return True


def recent_inputs(store: Store, chats: int = 30) -> list[str]:
    """The user's messages in the most recent chats, oldest first. Raises StoreError."""
    texts: list[str] = []
    for chat in reversed(store.chats(limit=chats)):
        for message in store.path(chat.id):
            if message.role == "user" and message.text not in texts[-1:]:
                texts.append(message.text)
    return texts
