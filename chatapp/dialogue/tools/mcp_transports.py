"""How messages reach a server of the Model Context Protocol: by its standard streams, or by HTTP.

Invariant: no message of a server takes more than a bounded memory; when the streams of a program
are closed, its process and all processes it started have ended.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chatapp.common.foreign import printable
from chatapp.common.userfiles import reason
from chatapp.dialogue.tools.process import Program, Supervision, digests_of
from chatapp.dialogue.tools.tool import Stopped
from chatapp.engine.errors import first_line

if TYPE_CHECKING:
    import httpx2
    from anyio.abc import Process
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

    Received = SessionMessage | Exception

_LONGEST_MESSAGE = 10_000_000
"""Bytes; a server that sends a longer one is disconnected."""

_REMEMBERED = 300
"""Bytes of a server's output outside of messages."""

_CONNECT_SECONDS, _SILENCE_SECONDS = 10.0, 3_600.0
"""A call has its own timeout."""


@dataclass(frozen=True, slots=True)
class Address:
    """A server that others run. headers: of every request, such as a key."""

    url: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def definition(self) -> dict[str, Any]:
        """Everything that determines what is called, as JSON data; values of headers as digests."""
        return {"url": self.url, "headers": digests_of(self.headers)}


class ProcessTransport:
    """The standard streams of a program. on_end: called when it sends no more."""

    def __init__(self, program: Program, on_end: Callable[[], None]) -> None:
        self.heard = b""
        """The end of what the server has sent outside of messages."""
        self._program = program
        self._on_end = on_end
        self._supervision = Supervision()
        self._has_ended = False
        self._ending: int | str = 0

    def end(self) -> None:
        """End the program immediately."""
        self._has_ended = True
        self._supervision.end()

    def problem(self, error: BaseException) -> str:
        """Why the program cannot be used, in words; "" if that is not the cause of an error."""
        if isinstance(error, OSError):
            return f"{self._program.command[0]} cannot be started: {reason(error)}"
        return self._ending if isinstance(self._ending, str) else ""

    @asynccontextmanager
    async def streams(self) -> "AsyncGenerator[Any]":
        """The server's process, and its messages in both directions."""
        # Not mcp.client.stdio: it ends a server's process group only if the server outlives the
        # closing of its input, never a process that left the group, and it limits no message.
        import anyio

        program, supervision = self._program, self._supervision
        with supervision.theirs as theirs:
            process = await anyio.open_process(
                supervision.command(program.command),
                cwd=program.folder,
                env=supervision.environment(program.environment, program.variables),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        incoming, received = anyio.create_memory_object_stream["Received"](0)
        sent, outgoing = anyio.create_memory_object_stream["SessionMessage"](0)
        try:
            if self._has_ended:  # before the process started
                raise Stopped
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read, process, incoming)
                tasks.start_soon(self._write, process, outgoing)
                tasks.start_soon(self._overhear, process)
                yield received, sent
                tasks.cancel_scope.cancel()
        finally:
            supervision.end()
            with anyio.CancelScope(shield=True):
                await process.aclose()
            self._ending = supervision.ending()

    async def _read(self, process: "Process", incoming: "MemoryObjectSendStream[Received]") -> None:
        """Pass on the server's messages line by line; other output is only remembered."""
        import anyio
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        assert process.stdout is not None
        held = bytearray()
        async with incoming:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                async for chunk in process.stdout:
                    *lines, rest = chunk.split(b"\n")
                    for line in lines:
                        held += line
                        whole, held = bytes(held), bytearray()
                        try:
                            message = jsonrpc_message_adapter.validate_json(whole, by_name=False)
                        except ValueError:
                            self._remember(whole + b"\n")
                        else:
                            await incoming.send(SessionMessage(message))
                    held += rest
                    if len(held) > _LONGEST_MESSAGE:
                        self._remember(b"a message of more than 10 MB")
                        break
        self._on_end()

    async def _write(
        self, process: "Process", outgoing: "MemoryObjectReceiveStream[SessionMessage]"
    ) -> None:
        import anyio

        assert process.stdin is not None
        async with outgoing:
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                async for item in outgoing:
                    text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await process.stdin.send(text.encode() + b"\n")

    async def _overhear(self, process: "Process") -> None:
        """Remember the end of the server's standard error."""
        assert process.stderr is not None
        async for chunk in process.stderr:
            self._remember(chunk)

    def _remember(self, output: bytes) -> None:
        self.heard = (self.heard + output[-_REMEMBERED:])[-_REMEMBERED:]


class WebTransport:
    """Streamable HTTP: each request is a POST, whose response has the answer."""

    def __init__(self, address: Address) -> None:
        self.heard = b""
        """The status of the last failed request."""
        self._address = address

    def end(self) -> None:
        """Nothing: the connection closes the streams."""

    def problem(self, error: BaseException) -> str:
        """See `ProcessTransport.problem`."""
        import httpx2
        from mcp import MCPError

        if isinstance(error, httpx2.HTTPError | httpx2.InvalidURL | OSError | UnicodeError):
            return f"{self._address.url} cannot be reached: {printable(first_line(error))}"
        if self.heard:
            return f"{self._address.url} answers {self.heard.decode()}"
        return (
            f"its server answers: {first_line(error)[:300]}" if isinstance(error, MCPError) else ""
        )

    @asynccontextmanager
    async def streams(self) -> "AsyncGenerator[Any]":
        """The messages in both directions."""
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        async with (
            httpx2.AsyncClient(
                headers=dict(self._address.headers) | {"Accept-Encoding": "identity"},
                timeout=httpx2.Timeout(_SILENCE_SECONDS, connect=_CONNECT_SECONDS),
                event_hooks={"response": [self._watch]},
            ) as client,
            streamable_http_client(
                self._address.url, http_client=client, max_sse_event_size=_LONGEST_MESSAGE
            ) as streams,
        ):
            yield streams

    async def _watch(self, response: "httpx2.Response") -> None:
        """Remember a failure, and bound the body of a response that is not a stream of events.

        Raises DecodingError for a compressed one, whose size would be known too late.
        """
        if response.headers.get("content-encoding", "identity") != "identity":
            import httpx2

            raise httpx2.DecodingError("it sends a compressed answer, which was not accepted")
        if response.is_error:
            self.heard = f"HTTP {response.status_code} {response.reason_phrase}".encode()
        if "text/event-stream" not in response.headers.get("content-type", ""):
            response.stream = _bounded(response.stream)


def _bounded(stream: Any) -> Any:
    import httpx2

    class Bounded(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            count = 0
            async for part in stream:
                count += len(part)
                if count > _LONGEST_MESSAGE:
                    raise httpx2.ReadError("a message of more than 10 MB")
                yield part

        async def aclose(self) -> None:
            await stream.aclose()

    return Bounded()
