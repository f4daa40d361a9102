"""A connection to a server of the Model Context Protocol.

Invariant: whatever a server does, a request ends in time; when its connection is closed, the
processes that it started have ended.
"""

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from chatapp.common.unforeseen import INTERRUPTS
from chatapp.dialogue.tools.mcp_transports import Address, ProcessTransport, WebTransport
from chatapp.dialogue.tools.process import Program
from chatapp.dialogue.tools.tool import Stopped, ToolError, clean

if TYPE_CHECKING:
    from mcp import Client

_Answer = TypeVar("_Answer")

_POLL_SECONDS = 0.05
_LONGEST_PROBLEM = 300
"""Characters."""


class Connection:
    """Connects to a server, on a thread of its own. `ask` raises when that failed."""

    def __init__(self, target: Program | Address) -> None:
        self.is_over = False
        """Whether the server has stopped answering."""
        self._client: concurrent.futures.Future[Client] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._end = asyncio.Event()
        values = [value for _, value in target.headers] if isinstance(target, Address) else []
        secrets = {part for value in values for part in (value, *value.split()[1:])}
        self._secrets = sorted((part for part in secrets if len(part) >= 4), key=len, reverse=True)
        self._transport: ProcessTransport | WebTransport
        if isinstance(target, Program):
            self._transport = ProcessTransport(target, self._be_over)
        else:
            self._transport = WebTransport(target)
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
            self._transport.heard = b""
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
        self._transport.end()
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _be_over(self) -> None:
        self.is_over = True
        self._end.set()

    async def _serve(self) -> None:
        """Run the connection until the server has ended."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        for name in ("mcp", "client"):  # the package's logs do not belong on a terminal
            logging.getLogger(name).addHandler(logging.NullHandler())
        try:
            from mcp import Client

            async with Client(self._transport.streams()) as client:
                self._client.set_result(client)
                await self._end.wait()
        except BaseException as error:  # groups of the package's own among them
            if not self._client.done():
                self._client.set_exception(error)
        finally:
            self.is_over = True

    def _words(self) -> str:
        """The server's output outside of messages, for the end of a sentence."""
        output = _one_line(self._transport.heard.decode("utf-8", "replace"))
        return f"; its output: {output}" if output else ""

    def _without_keys(self, text: str) -> str:
        """A sentence without the values of the headers, which a server may repeat."""
        for value in self._secrets:
            text = text.replace(value, "…")
        return text

    def _problem(self, error: BaseException) -> str:
        """Describe an error."""
        from pydantic import ValidationError

        while isinstance(error, BaseExceptionGroup):  # of tasks that ran together
            error = error.exceptions[0]
        if isinstance(error, ToolError):
            return str(error)
        if isinstance(error, ImportError):
            return "it needs the package mcp: pip install mcp"
        if problem := self._transport.problem(error):
            return problem
        if self.is_over:
            return f"its server has ended{self._words()}"
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            place = _one_line(".".join(map(str, first["loc"])))[:100]
            return f"its server does not keep to the protocol: {place}: {first['msg']}"
        return f"its server answers: {_one_line(str(error))}"


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
