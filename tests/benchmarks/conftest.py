"""Benchmarks that are measured take the time they take; in the gate they are only tried."""

from pathlib import Path

import pytest
from scale import is_tiny, try_only
from shared_data import shared_data, write_tiny_data


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr != "benchmark":
        try_only()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("benchmark") and not is_tiny():
            item.add_marker(pytest.mark.timeout(0))  # in pyproject.toml stands when a test hangs


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def data(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Public data sets in SHARED_DATA: real ones to measure, some rows of our own to try."""
    if is_tiny():
        monkeypatch.setenv("SHARED_DATA", str(request.getfixturevalue("tiny_data")))
    elif not shared_data().is_dir():
        pytest.skip("the shared data is not there; name its folder in SHARED_DATA")
