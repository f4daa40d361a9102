"""A server of a tiny model, in this process."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientResponse, ClientSession, web

from chatapp.common.parameters import Choices
from chatapp.engine.model import LanguageModel
from chatapp.prompting.chat_template import ChatTemplate
from chatapp.prompting.template import PLAIN
from chatapp.server import server as api
from chatapp.server.server import Access, APIServer
from chatapp.server.service import Service


@dataclass
class Client:
    """What asks the server."""

    session: ClientSession
    address: str
    model: LanguageModel
    service: Service

    async def post(self, path: str, body: Any, **options: Any) -> Any:
        """The answer's JSON, and its status as "status" if that is not 200."""
        async with self.session.post(self.address + path, json=body, **options) as response:
            return await _read(response)

    async def get(self, path: str, **options: Any) -> Any:
        async with self.session.get(self.address + path, **options) as response:
            return await _read(response)

    async def stream(self, path: str, body: Any) -> list[str]:
        """The events of a stream."""
        async with self.session.post(self.address + path, json=body | {"stream": True}) as response:
            text = await response.text()
        assert response.content_type == "text/event-stream", text
        return [line.removeprefix("data: ") for line in text.split("\n\n") if line]


async def _read(response: ClientResponse) -> Any:
    document = await response.json()
    return document if response.status == 200 else document | {"status": response.status}


@asynccontextmanager
async def serving(
    model: LanguageModel,
    access: Access | None = None,
    name: str = "tiny",
    port: int = 0,
    template: ChatTemplate = PLAIN,
) -> AsyncIterator[Client]:
    """Serve a model. port: 0 for a free one."""
    service = Service(model, template, Choices(), name)
    server = APIServer({name: service}, access or Access(frozenset({"127.0.0.1"})))
    options = {"handler_cancellation": True, "keepalive_timeout": api.SILENCE}
    runner = web.AppRunner(server.app(), shutdown_timeout=0.1, **options)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, backlog=api.BACKLOG)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with ClientSession() as session:
            yield Client(session, f"http://127.0.0.1:{port}", model, service)
    finally:
        await runner.cleanup()
        await asyncio.to_thread(service.close)


@contextmanager
def on_a_thread(model: LanguageModel, **options: Any) -> Iterator[str]:
    """The address of a server on a loop of its own, for clients that block.

    options: of `serving`.
    """
    started, ended = threading.Event(), asyncio.Event()
    addresses: list[str] = []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with serving(model, **options) as client:
            addresses.append(client.address)
            started.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(60)
    try:
        yield addresses[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
