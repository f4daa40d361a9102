"""A random GPT-2, and transformers' own computation to compare with."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from random_models import one_thread
from tiny import write_tiny_gpt2

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.files.model_files import ModelFiles

__all__ = ["one_thread"]
LogProbs = Callable[[Sequence[int], Sequence[int]], list[float]]


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gpt2(tmp_path_factory.mktemp("gpt2"), context=192)


@pytest.fixture
def gpt2(gpt2_folder: Path) -> LocalModel:
    return LocalModel.load(ModelFiles.read(gpt2_folder))


@pytest.fixture(scope="session")
def log_probs(gpt2_folder: Path) -> LogProbs:
    """The log-probability of each token of a continuation, one plain forward pass a call."""
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(gpt2_folder).eval()

    def compute(context: Sequence[int], continuation: Sequence[int]) -> list[float]:
        ids = [*context, *continuation]
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return [float(logits[len(context) - 1 + n, id]) for n, id in enumerate(continuation)]

    return compute
