"""A server of a tiny model, in this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientResponse, ClientSession, web

from chatapp.api.served import Served
from chatapp.api.server import Access, Server
from chatapp.api.service import Service
from chatapp.common.parameters import Choices
from chatapp.engine.model import LanguageModel
from chatapp.prompting.template import PLAIN

TOKEN = "the secret of this user"
"""Of the server at `address`."""


@dataclass
class Client:
    """What asks the server."""

    session: ClientSession
    address: str
    model: LanguageModel

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
    model: LanguageModel, access: Access | None = None, token: str = ""
) -> AsyncIterator[Client]:
    """Serve a model at a free port."""
    served = Served(lambda: Service(model, PLAIN, Choices(), "tiny"))
    server = Server({"tiny": served}, access or Access(frozenset({"127.0.0.1"})), token)
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with ClientSession() as session:
            yield Client(session, f"http://127.0.0.1:{port}", model)
    finally:
        await runner.cleanup()
        await asyncio.to_thread(served.close)
