"""Whether a tool may run: asked of the user, and remembered as far as the user says.

Keep: what is not answered with a yes is a no.
"""

import threading
from collections.abc import Callable
from typing import Literal

from chatapp.dialogue.store import Store
from chatapp.tools import grants
from chatapp.tools.tool import Arguments, Tool

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
        if tool.key in allowed or grants.is_allowed(tool):
            return True
        decision = self._ask(tool, arguments, cancel)
        if decision == "chat":
            self._store.allow_tool(self._chat_id, tool.key)
        elif decision == "always":
            grants.allow(tool)
        return decision != "no"
