"""A server of a tiny model: for tasks of the test's loop, and for clients that block."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from api_server import TOKEN, Client, serving
from tiny import write_tiny_gpt2

from chatapp.models.loading import load_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gpt2(tmp_path_factory.mktemp("api"), context=256)


@pytest.fixture
async def client(tiny_folder: Path) -> AsyncIterator[Client]:
    async with serving(load_model(str(tiny_folder), precision="float32", device="cpu")) as client:
        yield client


@pytest.fixture(scope="session")
def address(tiny_folder: Path) -> Iterator[str]:
    """A server on a loop of its own, for clients that block."""
    started, ended = threading.Event(), asyncio.Event()
    found: list[str] = []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        model = load_model(str(tiny_folder), precision="float32", device="cpu")
        async with serving(model, token=TOKEN) as client:
            found.append(client.address)
            started.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert started.wait(60)
    yield found[0]
    loop.call_soon_threadsafe(ended.set)
    thread.join()
    loop.close()
