"""The fixtures of the tests of the inspector."""

import pytest
from glass import random_gpt2

from chatapp.engine.backends.local import LocalModel


@pytest.fixture(scope="session")
def gpt2() -> LocalModel:
    return random_gpt2()
