"""A connection to a running server of the Model Context Protocol over its standard streams.

Invariant: whatever a server does, a request ends in time; when its connection is closed, its
process and all processes it started have ended.
"""

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from chatapp.common.unforeseen import INTERRUPTS
from chatapp.common.userfiles import reason
from chatapp.tools.process import Program, Supervision
from chatapp.tools.tool import Stopped, ToolError, clean

if TYPE_CHECKING:
    from anyio.abc import Process
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp import Client
    from mcp.shared.message import SessionMessage

    Received = SessionMessage | Exception
    Streams = tuple[MemoryObjectReceiveStream[Received], MemoryObjectSendStream[SessionMessage]]

_Answer = TypeVar("_Answer")

_POLL_SECONDS = 0.05
_LONGEST_MESSAGE = 10_000_000
"""Bytes; a server that sends a longer one is disconnected."""

_REMEMBERED = 300
"""Bytes of a server's output outside of messages."""


class Connection:
    """Starts a server, on a thread of its own. `ask` raises when that failed."""

    def __init__(self, program: Program) -> None:
        self.is_over = False
        """Whether the server has stopped answering."""
        self._program = program
        self._client: concurrent.futures.Future[Client] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._supervision = Supervision()
        self._ending: int | str = 0
        self._output = b""
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
        self._output = b""
        try:
            client = _result(self._client, deadline, cancel)
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
            raise ToolError(self._problem(error)) from None

    def close(self) -> None:
        """End the server immediately."""
        self.is_over = True
        self._supervision.end()

    async def _serve(self) -> None:
        """Run the connection until the server has ended."""
        self._loop = asyncio.get_running_loop()
        for name in ("mcp", "client"):  # the package's logs do not belong on a terminal
            logging.getLogger(name).addHandler(logging.NullHandler())
        try:
            from mcp import Client

            async with Client(self._streams()) as client:
                self._client.set_result(client)
                await self._end.wait()
        except BaseException as error:  # groups of the package's own among them
            if not self._client.done():
                self._client.set_exception(error)
        finally:
            self.is_over = True

    @asynccontextmanager
    async def _streams(self) -> "AsyncGenerator[Streams]":
        """The server's process, and its messages in both directions."""
        # Not mcp.client.stdio: it ends a server's process group only if the server outlives the
        # closing of its input, never a process that left the group, and it limits no message.
        import anyio

        supervision = self._supervision
        with supervision.theirs as theirs:
            process = await anyio.open_process(
                supervision.command(self._program.command),
                cwd=self._program.folder,
                env=supervision.environment(self._program.environment),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        incoming, received = anyio.create_memory_object_stream["Received"](0)
        sent, outgoing = anyio.create_memory_object_stream["SessionMessage"](0)
        try:
            if self.is_over:  # closed before the process started
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
        self.is_over = True
        self._end.set()

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
        self._output = (self._output + output[-_REMEMBERED:])[-_REMEMBERED:]

    def _words(self) -> str:
        """The server's output outside of messages, for the end of a sentence."""
        output = _one_line(self._output.decode("utf-8", "replace"), _REMEMBERED)
        return f"; its output: {output}" if output else ""

    def _problem(self, error: BaseException) -> str:
        """Describe an error."""
        from pydantic import ValidationError

        while isinstance(error, BaseExceptionGroup):  # of tasks that ran together
            error = error.exceptions[0]
        if isinstance(error, ToolError):
            return str(error)
        if isinstance(error, ImportError):
            return "it needs the package mcp: pip install mcp"
        if isinstance(error, OSError):
            return f"{self._program.command[0]} cannot be started: {reason(error)}"
        if isinstance(self._ending, str):
            return self._ending
        if self.is_over:
            return f"its server has ended{self._words()}"
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            return (
                f"its server does not keep to the protocol: {_one_line(place, 100)}: {first['msg']}"
            )
        return f"its server answers: {_one_line(str(error), _REMEMBERED)}"


def _one_line(text: str, limit: int) -> str:
    """The beginning of a foreign text as part of a sentence."""
    return " ".join(clean(text).split())[:limit]


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
