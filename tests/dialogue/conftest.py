"""A store of the test's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chatapp.dialogue.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "chats.db")
    yield store
    store.close()
