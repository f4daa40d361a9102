"""The available tools: built-in ones, the user's own, and those of servers.

Invariant: names are unique; a built-in tool is never replaced. A tool that only computes, or reads
what the user has given the chat, needs no permission; one that runs code or leaves this machine
asks for every call.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chatapp.common.settings import load_settings
from chatapp.common.userfiles import UserError, suggestion
from chatapp.dialogue.tools import built_in, user_tools
from chatapp.dialogue.tools.built_in import calculate, in_digits
from chatapp.dialogue.tools.mcp_servers import Servers
from chatapp.dialogue.tools.python import run_python
from chatapp.dialogue.tools.tool import Arguments, Tool, ToolError, with_examples
from chatapp.tasks.files.documents import DocumentSet

_MCP_SERVERS = "mcp_servers"
"""The setting; its problem belongs to every name that is unknown."""


@dataclass(frozen=True, slots=True)
class Registry:
    """tools: by name; of a server only those that it has listed before. problems: a sentence for
    every invalid file, by its name without the suffix. servers: by name.
    """

    tools: Mapping[str, Tool]
    problems: Mapping[str, str]
    servers: Mapping[str, user_tools.ToolServer]
    running: Servers

    def chosen(
        self, names: Iterable[str], cancel: threading.Event | None = None
    ) -> dict[str, Tool]:
        """Select tools by name; the name of a server selects all of its tools. Servers list unknown
        ones, until the event is set. Raises ToolError for a tool that does not exist.
        """
        tools, chosen = dict(self.tools), dict[str, Tool]()
        for name in names:
            for server in self._servers_of(name):
                if name not in tools or name == server.name:
                    server_tools = self.running.ask(server, cancel).tools
                    tools |= {key: tool for key, tool in server_tools.items() if key not in tools}
            if name in self.servers:
                chosen |= {key: tool for key, tool in tools.items() if tool.server == name}
            elif name in tools:
                chosen[name] = tools[name]
            else:
                hint = suggestion(name, [*tools, *self.servers])
                unread = self.problems.get(name) or self.problems.get(_MCP_SERVERS)
                raise ToolError(unread or f"there is no tool {name!r}{hint}")
        return chosen

    def may_have(self, name: str) -> bool:
        """Whether an unknown tool may belong to a server."""
        return name not in self.tools and bool(self._servers_of(name))

    def _servers_of(self, name: str) -> "list[user_tools.ToolServer]":
        """The server of this name, or else those that may have the tool, the most likely first."""
        if name in self.servers:
            return [self.servers[name]]
        servers = [server for server in self.servers.values() if name.startswith(f"{server.name}_")]
        return sorted(servers, key=lambda server: len(server.name), reverse=True)

    def list_names(self, cancel: threading.Event | None = None) -> "tuple[list[str], list[str]]":
        """The current names of all tools, and a sentence for each problem. Servers are asked until
        the event is set.
        """
        failures: list[str] = []
        for server in self.servers.values():
            try:
                self.running.ask(server, cancel)
            except ToolError as error:
                failures.append(str(error))
        names, problems = self._last_listed()
        return names, [*self.problems.values(), *failures, *(text for _, text in problems)]

    def problems_of(self, names: Iterable[str]) -> list[str]:
        """A sentence for every tool left out from the servers of these names."""
        wanted = set(names)
        return [text for server, text in self._last_listed()[1] if server in wanted]

    def _last_listed(self) -> tuple[list[str], list[tuple[str, str]]]:
        """The names of all tools as servers listed them last; and for every tool that was left out
        its server and a sentence.
        """
        names = [name for name, tool in self.tools.items() if not tool.server]
        problems: list[tuple[str, str]] = []
        for server in self.servers.values():
            listing = self.running.known(server)
            problems += ((server.name, text) for text in listing.problems)
            for name in listing.tools:
                if name in names:
                    text = f"{server.name}: its tool {name!r} has the name of another"
                    problems.append((server.name, text))
                else:
                    names.append(name)
        return names, problems


def find_tools(documents: DocumentSet | None = None, running: Servers | None = None) -> Registry:
    """All tools. documents: those of the chat, which one of the tools searches. running: the chat's
    running servers.
    """
    running = running or Servers()
    tools = {tool.name: with_examples(tool) for tool in _built_in(documents)}
    problems: dict[str, str] = {}
    servers: dict[str, user_tools.ToolServer] = {}
    try:
        paths = user_tools.files()
    except ToolError as error:
        return Registry(tools, {"": str(error)}, servers, running)
    for path in paths:
        try:
            tool = user_tools.read(path)
            if tool.name in tools or tool.name in servers:
                raise ToolError(f"{path}: 'name' is {tool.name!r}, which another tool has")
            if isinstance(tool, Tool):
                tools[tool.name] = tool
            else:
                servers[tool.name] = tool
        except ToolError as error:
            problems[path.stem] = str(error)
    _add_servers(servers, problems, tools)
    for server in servers.values():
        known = running.known(server).tools
        tools |= {name: tool for name, tool in known.items() if name not in tools}
    return Registry(tools, problems, servers, running)


def _add_servers(
    servers: dict[str, user_tools.ToolServer], problems: dict[str, str], tools: Mapping[str, Tool]
) -> None:
    """Add the servers of the file that the setting `mcp_servers` names."""
    try:
        named = load_settings().mcp_servers
        if not named:
            return
        path = Path(named).expanduser().absolute()
        others, faults = user_tools.read_servers(path)
    except (UserError, RuntimeError) as error:  # an unknown user's home
        problems[_MCP_SERVERS] = str(error)
        return
    problems |= faults
    for server in others:
        if server.name in tools or server.name in servers:
            problems[server.name] = f"{path}: {server.name!r} is the name of another tool or server"
        else:
            servers[server.name] = server


def _built_in(documents: DocumentSet | None) -> Iterable[Tool]:
    yield Tool(
        "calculator",
        "Works out an arithmetic expression exactly, such as 48*(76+2)/5 or 15% of 80.",
        _schema(expression="string"),
        lambda arguments, cancel: in_digits(calculate(arguments["expression"])),
    )
    yield Tool(
        "clock",
        "Tells the date and the time, in a time zone such as Europe/Paris, or at its city, if one "
        "is given.",
        _schema((), zone="string"),
        lambda arguments, cancel: built_in.clock(arguments.get("zone")),
        accepts={"zone": built_in.is_place},
    )
    yield Tool(
        "manual",
        "Searches the documentation of chatapp, the program of this chat.",
        _schema(query="string"),
        _search_manual,
    )
    yield Tool(
        "python",
        "Runs Python code and returns what it prints and the value of its last line.",
        _schema(code="string"),
        run_python,
        asks=True,
        asks_each_time=True,
    )
    yield Tool(
        "page",
        "Fetches a page of the web as text. An address is as https://example.org/.",
        _schema(url="string"),
        _fetch_page,
        asks=True,
        asks_each_time=True,
    )
    if documents is not None:
        yield Tool(
            "documents",
            "Searches the documents of this chat for passages near to a query.",
            _schema(query="string"),
            _DocumentSearch(documents),
        )


class _DocumentSearch:
    """Searches documents, which stay open between calls."""

    def __init__(self, documents: DocumentSet) -> None:
        from chatapp.dialogue.documents.search import Documents

        self._documents = Documents(documents)

    def __call__(self, arguments: Arguments, cancel: threading.Event) -> str:
        from chatapp.dialogue.tools.lookup import search

        return search(self._documents, arguments["query"], cancel)


def _search_manual(arguments: Arguments, cancel: threading.Event) -> str:
    from chatapp.dialogue.tools.lookup import search_manual

    return search_manual(arguments["query"], cancel)


def _fetch_page(arguments: Arguments, cancel: threading.Event) -> str:
    from chatapp.dialogue.tools.page import fetch_page

    return fetch_page(arguments, cancel)


def _schema(required: Iterable[str] | None = None, /, **types: str) -> dict[str, Any]:
    """The schema of an object with these properties. required: None is all of them."""
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in types.items()},
        "required": list(types if required is None else required),
        "additionalProperties": False,
    }
