"""A server of a tiny model: for tasks of the test's loop, and for clients that block."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from api_server import Client, on_a_thread, serving
from tiny import write_tiny_gpt2

from chatapp.engine.models.loading import load_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gpt2(tmp_path_factory.mktemp("api"), context=256)


@pytest.fixture
async def client(tiny_folder: Path) -> AsyncIterator[Client]:
    async with serving(load_model(str(tiny_folder), precision="float32", device="cpu")) as client:
        yield client


@pytest.fixture(scope="session")
def address(tiny_folder: Path) -> Iterator[str]:
    """The server of a tiny model, for clients that block."""
    model = load_model(str(tiny_folder), precision="float32", device="cpu")
    with on_a_thread(model) as address:
        yield address
