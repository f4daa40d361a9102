"""No servers of this machine's user, and no proxy."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No servers of this machine's user, and no proxy."""
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    for name in [*os.environ]:
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
