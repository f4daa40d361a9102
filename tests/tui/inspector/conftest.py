"""The fixtures of the tests of the inspector."""

import pytest
from glass import random_gpt2
from random_models import bpe

from chatapp.engine.backends.local import LocalModel

__all__ = ["bpe"]


@pytest.fixture(scope="session")
def gpt2() -> LocalModel:
    return random_gpt2()
