"""The tools of one chat: which are on, and who is asked before one runs.

Keep: they are looked up anew for every reply, so that a file that was changed or taken away counts
from then on.
"""

import threading
from collections.abc import Sequence
from typing import Any

from chatapp.dialogue.calling import Toolbox, out_of_reach
from chatapp.dialogue.permission import Ask, Permission, never
from chatapp.dialogue.store import Store
from chatapp.prompting.calls import CallPattern
from chatapp.prompting.documents import DocumentSet
from chatapp.tools.registry import Registry, find_tools
from chatapp.tools.servers import Servers
from chatapp.tools.tool import ToolError


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
