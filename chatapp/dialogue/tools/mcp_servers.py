"""Servers of the Model Context Protocol: their tools, and a connection to each, by the official
package over the standard streams of a program or by HTTP.

Invariant: a server starts when one of its tools is needed, runs until its `Servers` are closed, and
is restarted after it has ended. Whatever it does, a request ends in time, and no message takes more
than a bounded memory; after the end of its connection, all processes that it started have ended.
Its descriptions of tools are foreign text: bounded, without control characters; the user is asked
before any of them runs.
"""

import asyncio
import concurrent.futures
import json
import re
import threading
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from chatapp.common.extras import MissingPackage, require
from chatapp.common.foreign import clean
from chatapp.common.limited_process import Program, Supervision
from chatapp.common.unforeseen import INTERRUPTS
from chatapp.common.userfiles import UserError, dotted_key, quoted, reason
from chatapp.common.web import web_client, without_keys
from chatapp.dialogue.tools.schemas import fault
from chatapp.dialogue.tools.tool import LONGEST_SCHEMA, Arguments, Stopped, Tool, ToolError, bounded
from chatapp.dialogue.tools.user_tools import NAME, Address, ToolServer

if TYPE_CHECKING:
    import httpx2
    import mcp_types
    from anyio.abc import Process
    from mcp import Client

_Answer = TypeVar("_Answer")

_LISTING_SECONDS = 20.0
_MOST_LISTED = 200
"""Tools of a server, and pages of a list of them."""

_LONGEST_DESCRIPTION = 1_000
"""Characters. The model reads it in every prompt."""

_LONGEST_MESSAGE = 10_000_000
"""Bytes; a server that sends a longer one is disconnected."""

_TOO_LONG = "a message of more than 10 MB"
_LONGEST_PROBLEM = 300
"""Characters of a server's own words in a sentence."""

_POLL_SECONDS = 0.05
_CONNECT_SECONDS, _SILENCE_SECONDS = 10.0, 3_600.0
"""A call has its own timeout."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of a server by their names here. problems: a sentence for every invalid tool."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


class Servers:
    """The running servers."""

    def __init__(self) -> None:
        self._running: dict[Program | Address, Connection] = {}
        self._listings: dict[ToolServer, Listing] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        weakref.finalize(self, _close_all, self._running)  # at the latest when the program ends

    def close(self) -> None:
        """End all of them immediately; no more are started."""
        with self._lock:
            self._is_closed = True
            _close_all(self._running)

    def known(self, server: ToolServer) -> Listing:
        """The tools that a server has listed before; none when it has not yet."""
        return self._listings.get(server, Listing())

    def ask(self, server: ToolServer, cancel: threading.Event | None = None) -> Listing:
        """Let a server list its tools. Raises ToolError, which names it."""
        try:
            connection = self._connection(server)
            listed = connection.ask(_listed, _LISTING_SECONDS, cancel or threading.Event())
        except UserError as error:
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

    def _connection(self, server: ToolServer) -> "Connection":
        """The connection to a server, started if necessary. Raises ToolError once all
        are closed."""
        with self._lock:  # or two parallel requests would start it twice
            if self._is_closed:
                raise ToolError("its chat was closed")
            connection = self._running.get(server.target)
            if connection is None or connection.is_over:
                connection = self._running[server.target] = Connection(server.target)
            return connection

    def _tool(self, server: ToolServer, foreign: "mcp_types.Tool") -> Tool:
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
        self, server: ToolServer, name: str, arguments: Arguments, cancel: threading.Event
    ) -> str:
        """The result of a call. Raises ToolError and Stopped."""
        connection = self._connection(server)
        result = connection.ask(
            lambda client: client.call_tool(name, dict(arguments)), server.timeout, cancel
        )
        text = bounded(_text(result), server.output_limit)
        if result.is_error:
            raise ToolError(text or "it failed")
        return text


def _close_all(running: "dict[Program | Address, Connection]") -> None:
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
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    parts = []
    for block in result.content:
        holder = getattr(block, "resource", block)
        parts.append(str(holder.text) if hasattr(holder, "text") else f"[{block.type}]")
    return "\n".join(parts)


class Connection:
    """Connects to a server, on a thread of its own. `ask` raises when that failed; this raises
    UserError where programs cannot be supervised.
    """

    def __init__(self, target: Program | Address) -> None:
        self.is_over = False
        """Whether the server has stopped answering."""
        self._target = target
        self._supervision = Supervision(target) if isinstance(target, Program) else None
        self._heard = b""
        """The end of what a program sent outside of messages, or the status of a failed request."""
        self._ending: int | str = 0
        self._client: concurrent.futures.Future[Client] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._end = asyncio.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()

    def ask(
        self,
        request: "Callable[[Client], Coroutine[Any, Any, _Answer]]",
        seconds: float,
        cancel: threading.Event,
    ) -> _Answer:
        """The server's answer.

        Raises ToolError with a sentence and, soon after its event is set, Stopped. A server that
        was stopped or exceeds the number of seconds is ended.
        """
        deadline = time.monotonic() + seconds
        try:
            client = _result(self._client, deadline, cancel)
            self._heard = b""
            if self.is_over or self._loop is None:
                raise ToolError(f"its server has ended{self._words()}")
            answer = asyncio.run_coroutine_threadsafe(request(client), self._loop)
            return _result(answer, deadline, cancel)
        except Stopped:
            self.close()
            raise
        except TimeoutError:
            self.close()
            raise ToolError(f"it took longer than {seconds:g} seconds{self._words()}") from None
        except INTERRUPTS:
            raise
        except BaseException as error:
            raise ToolError(self._without_keys(self._problem(error))) from None

    def close(self) -> None:
        """End the server immediately, or the connection to one that others run."""
        self.is_over = True
        if self._supervision is not None:
            self._supervision.end()
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        """Cancel the connection, on its thread, where it can be: while a program starts or ends,
        that would kill the supervisor that ends what the program has started.
        """
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _serve(self) -> None:
        """Run the connection until the server has ended."""
        is_program = self._supervision is not None
        self._task = None if is_program else asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        try:
            require("mcp")
            from mcp import Client

            async with Client(self._by_process() if is_program else self._by_http()) as client:
                self._client.set_result(client)
                await self._end.wait()
        except BaseException as error:  # groups of the package's own among them
            if not self._client.done():
                self._client.set_exception(error)
        finally:
            self.is_over = True

    @asynccontextmanager
    async def _by_process(self) -> "AsyncGenerator[Any]":
        """The messages of a program in both directions, over its standard streams."""
        # Not mcp.client.stdio: it ends a server's process group only if the server outlives the
        # closing of its input, never a process that left the group, and it limits no message.
        import anyio

        supervision = self._supervision
        assert supervision is not None
        with supervision.theirs:
            process = await anyio.open_process(supervision.command, **supervision.options)
        incoming, received = anyio.create_memory_object_stream[Any](0)
        sent, outgoing = anyio.create_memory_object_stream[Any](0)
        try:
            self._task = asyncio.current_task()
            if self.is_over:  # closed before the process started
                raise Stopped
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read, process, incoming)
                tasks.start_soon(_write, process, outgoing)
                tasks.start_soon(self._overhear, process)
                yield received, sent
                tasks.cancel_scope.cancel()
        finally:
            self._task = None
            supervision.end()
            with anyio.CancelScope(shield=True):
                await process.aclose()
            self._ending = supervision.ending()

    async def _read(self, process: "Process", incoming: Any) -> None:
        """Pass on the server's messages line by line; other output is only remembered."""
        import anyio
        from anyio.streams.buffered import BufferedByteReceiveStream
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        async with incoming:
            try:
                while True:
                    line = await lines.receive_until(b"\n", _LONGEST_MESSAGE)
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        self._remember(line + b"\n")
                    else:
                        await incoming.send(SessionMessage(message))
            except anyio.DelimiterNotFound:
                self._remember(_TOO_LONG.encode())
            except anyio.IncompleteRead:  # the end
                self._remember(lines.buffer)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass
        self.is_over = True
        self._end.set()

    async def _overhear(self, process: "Process") -> None:
        """Remember the end of the server's standard error."""
        assert process.stderr is not None
        async for chunk in process.stderr:
            self._remember(chunk)

    def _remember(self, output: bytes) -> None:
        self._heard = (self._heard + output[-_LONGEST_PROBLEM:])[-_LONGEST_PROBLEM:]

    @asynccontextmanager
    async def _by_http(self) -> "AsyncGenerator[Any]":
        """Streamable HTTP: each request is a POST, whose response has the answer."""
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        address = self._target
        assert isinstance(address, Address)
        async with (
            web_client(
                httpx2.AsyncClient,
                self._watch,
                headers=dict(address.headers),
                timeout=httpx2.Timeout(_SILENCE_SECONDS, connect=_CONNECT_SECONDS),
            ) as client,
            streamable_http_client(
                address.url, http_client=client, max_sse_event_size=_LONGEST_MESSAGE
            ) as streams,
        ):
            yield streams

    async def _watch(self, response: "httpx2.Response") -> None:
        """Remember a failure, and bound the body of a response that is not a stream of events."""
        if response.is_error:
            self._heard = f"HTTP {response.status_code} {response.reason_phrase}".encode()
        if "text/event-stream" not in response.headers.get("content-type", ""):
            response.stream = _bounded(response.stream)

    def _words(self) -> str:
        """The server's output outside of messages, for the end of a sentence."""
        output = _one_line(self._heard.decode("utf-8", "replace"))
        return f"; its output: {output}" if output else ""

    def _without_keys(self, text: str) -> str:
        """A sentence without the values of the headers, which a server may repeat."""
        headers = self._target.headers if isinstance(self._target, Address) else ()
        values = {part for _, value in headers for part in (value, *value.split()[1:])}
        for value in sorted(values, key=len, reverse=True):
            text = text.replace(value, "…") if len(value) >= 4 else text
        return without_keys(text)

    def _problem(self, error: BaseException) -> str:
        """Describe an error."""
        import httpx2
        from pydantic import ValidationError

        while isinstance(error, BaseExceptionGroup):  # of tasks that ran together
            error = error.exceptions[0]
        if isinstance(error, ToolError | MissingPackage):
            return str(error)
        if isinstance(self._target, Program):
            if isinstance(error, OSError):
                return f"{self._target.command[0]} cannot be started: {reason(error)}"
            if isinstance(self._ending, str):
                return self._ending
            if self.is_over:
                return f"its server has ended{self._words()}"
        elif isinstance(error, httpx2.HTTPError | httpx2.InvalidURL | OSError | UnicodeError):
            return f"{self._target.url} cannot be reached: {_one_line(str(error))}"
        elif self._heard:
            return f"{self._target.url} answers {_one_line(self._heard.decode())}"
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            place = _one_line(".".join(map(str, first["loc"])))[:100]
            return f"its server does not keep to the protocol: {place}: {first['msg']}"
        return f"its server answers: {_one_line(str(error))}"


async def _write(process: "Process", outgoing: Any) -> None:
    """Send the messages to a server's standard input."""
    import anyio

    assert process.stdin is not None
    async with outgoing:
        with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for item in outgoing:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(text.encode() + b"\n")


def _bounded(stream: Any) -> Any:
    import httpx2

    class Bounded(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            count = 0
            async for part in stream:
                count += len(part)
                if count > _LONGEST_MESSAGE:
                    raise httpx2.ReadError(_TOO_LONG)
                yield part

        async def aclose(self) -> None:
            await stream.aclose()

    return Bounded()


def _one_line(text: str) -> str:
    """The beginning of a foreign text as part of a sentence."""
    return " ".join(clean(text).split())[:_LONGEST_PROBLEM]


def _result(
    future: "concurrent.futures.Future[_Answer]", deadline: float, cancel: threading.Event
) -> _Answer:
    """The result of a future. Raises Stopped, and TimeoutError after the deadline."""
    while not future.done():
        if cancel.is_set():
            future.cancel()
            raise Stopped
        if time.monotonic() > deadline:
            future.cancel()
            raise TimeoutError
        concurrent.futures.wait([future], _POLL_SECONDS)
    return future.result()
