"""The tools of servers of the Model Context Protocol.

Invariant: a server starts when one of its tools is needed, runs until its `Servers` are closed, and
is restarted after it has ended. Its descriptions of tools are foreign text: bounded, without
control characters; the user is asked before any of them runs.
"""

import json
import re
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from chatapp.common.userfiles import dotted_key, quoted
from chatapp.dialogue.tools.mcp_connection import Connection
from chatapp.dialogue.tools.mcp_transports import Address
from chatapp.dialogue.tools.process import Program
from chatapp.dialogue.tools.schemas import fault
from chatapp.dialogue.tools.tool import (
    LONGEST_SCHEMA,
    Arguments,
    Stopped,
    Tool,
    ToolError,
    bounded,
    clean,
)
from chatapp.dialogue.tools.user_tools import NAME, Server

if TYPE_CHECKING:
    import mcp_types
    from mcp import Client

_LISTING_SECONDS = 20.0
_MOST_LISTED = 200
"""Tools of a server, and pages of a list of them."""

_LONGEST_DESCRIPTION = 1_000
"""Characters. The model reads it in every prompt."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of a server by their names here. problems: a sentence for every invalid tool."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


class Servers:
    """The running servers."""

    def __init__(self) -> None:
        self._running: dict[Program | Address, Connection] = {}
        self._listings: dict[Server, Listing] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        weakref.finalize(self, _close_all, self._running)  # at the latest when the program ends

    def close(self) -> None:
        """End all of them immediately; no more are started."""
        with self._lock:
            self._is_closed = True
            _close_all(self._running)

    def known(self, server: Server) -> Listing:
        """The tools that a server has listed before; none when it has not yet."""
        return self._listings.get(server, Listing())

    def ask(self, server: Server, cancel: threading.Event | None = None) -> Listing:
        """Let a server list its tools. Raises ToolError, which names it."""
        try:
            connection = self._connection(server)
            listed = connection.ask(_listed, _LISTING_SECONDS, cancel or threading.Event())
        except ToolError as error:
            raise ToolError(f"{server.name}: {error}") from None
        except Stopped:
            raise ToolError(f"{server.name}: stopped before it had listed its tools") from None
        tools: dict[str, Tool] = {}
        problems: list[str] = []
        for foreign in listed:
            try:
                tool = self._tool(server, foreign)
                if tool.name in tools:
                    raise ToolError(f"it lists {quoted(foreign.name)} twice")
                tools[tool.name] = tool
            except ToolError as error:
                problems.append(f"{server.name}: {error}")
        self._listings[server] = Listing(tools, tuple(problems))
        return self._listings[server]

    def _connection(self, server: Server) -> Connection:
        """The connection to a server, started if necessary. Raises ToolError once all
        are closed."""
        with self._lock:  # or two parallel requests would start it twice
            if self._is_closed:
                raise ToolError("its chat was closed")
            connection = self._running.get(server.target)
            if connection is None or connection.is_over:
                connection = self._running[server.target] = Connection(server.target)
            return connection

    def _tool(self, server: Server, foreign: "mcp_types.Tool") -> Tool:
        """A tool that a server has listed. Raises ToolError for an invalid one."""
        name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server.name}_{foreign.name}")
        if not NAME.fullmatch(name):
            raise ToolError(f"the name of its tool {quoted(foreign.name)} is too long")
        schema = {**foreign.input_schema, "type": "object"}
        if (length := len(json.dumps(schema))) > LONGEST_SCHEMA:
            raise ToolError(
                f"the schema of {quoted(foreign.name)} has {length:,} characters, expected at most "
                f"{LONGEST_SCHEMA:,}"
            )
        place, problem = fault(schema, is_foreign=True)
        if problem:
            where = quoted(dotted_key(place))
            raise ToolError(f"in the schema of {quoted(foreign.name)}, {where} {problem}")
        description = clean(foreign.description or "")[:_LONGEST_DESCRIPTION]
        return Tool(
            name,
            description or f"{foreign.name} of {server.name}",
            schema,
            partial(self._call, server, foreign.name),
            asks=True,
            definition=lambda: server.target.definition() | {"tool": foreign.name},
            server=server.name,
        )

    def _call(
        self, server: Server, name: str, arguments: Arguments, cancel: threading.Event
    ) -> str:
        """The result of a call. Raises ToolError and Stopped."""

        async def called(client: "Client") -> "mcp_types.CallToolResult":
            return await client.call_tool(name, dict(arguments))

        result = self._connection(server).ask(called, server.timeout, cancel)
        text = bounded(_text(result), server.output_limit)
        if result.is_error:
            raise ToolError(text or "it failed")
        return text


def _close_all(running: dict[Program | Address, Connection]) -> None:
    for connection in running.values():
        connection.close()


async def _listed(client: "Client") -> "list[mcp_types.Tool]":
    """All tools of a server, which lists them page by page."""
    tools: list[mcp_types.Tool] = []
    cursor: str | None = None
    for _ in range(_MOST_LISTED if client.server_capabilities.tools else 0):  # a page may be empty
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if len(tools) > _MOST_LISTED:
            raise ToolError(f"its server lists more than {_MOST_LISTED} tools")
        if cursor is None:
            return tools
    if cursor is not None:
        raise ToolError(f"its server lists its tools on more than {_MOST_LISTED} pages")
    return tools


def _text(result: "mcp_types.CallToolResult") -> str:
    """A result as text; other content is represented by its kind."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join(parts)


def _part(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type == "resource" and hasattr(block.resource, "text"):
        return str(block.resource.text)
    return f"[{block.type}]"
