"""Tiny models run faster on one thread than on threads that wait for each other."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
