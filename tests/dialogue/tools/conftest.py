"""A home of the test's own, with a folder for its user's tools."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    folder = tmp_path / "config" / "tools"
    folder.mkdir(parents=True)
    return folder
