"""What the tests of finetuning share: one thread, and a home of their own."""

import gc
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHATAPP_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(autouse=True, scope="session")
def frozen_imports() -> None:
    """A run collects garbage often, and need not go through all that torch has imported."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny models run faster on one thread than on threads that wait for each other."""
    torch.set_num_threads(1)
