"""What tests of the cupboard share."""

from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new folder of this program's files."""
    place = tmp_path / "home"
    monkeypatch.setenv("CHATAPP_HOME", str(place))
    return place
