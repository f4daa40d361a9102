"""Benchmarks take the time they take; a test that hangs is ended (see pyproject.toml)."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("benchmark"):
            item.add_marker(pytest.mark.timeout(0))
