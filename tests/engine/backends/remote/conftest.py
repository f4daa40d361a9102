"""No servers of this machine's user, and no proxy."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from completions_server import CompletionsServer

from chatapp.engine.backends.remote.remote_model import RemoteModel
from chatapp.engine.models.loading import load_model


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No servers of this machine's user, and no proxy."""
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    for name in [*os.environ]:
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def server() -> Iterator[CompletionsServer]:
    """A server of chats and completions."""
    with CompletionsServer().running() as server:
        server.protocols = ("chat/completions", "completions")
        server.models = [{"id": "tiny", "max_model_len": 64}]
        yield server


@pytest.fixture
def model(server: CompletionsServer) -> RemoteModel:
    """Its model, before anything is requested from it."""
    loaded = load_model(server.url)
    assert isinstance(loaded, RemoteModel)
    server.probes.clear()
    return loaded
