"""Tokens a second of many sequences at once, with weights of GPT-2 124M's shape in int8.

Run it with `pytest -m benchmark -s tests/benchmarks/test_many_sequences.py`. Prompts of unlike
length and sampled replies; each number of sequences in turn, the best of some rounds.
"""

import time

import pytest
import torch
from decoders import tell
from fakes import WordTokenizer
from random_124m import gpt2_124m
from scale import check_finite, is_tiny, sized

from chatapp.engine.backends.local import LocalModel, load_decoder
from chatapp.engine.batch import Batch
from chatapp.engine.events import Finished
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import Request, Sampling

pytestmark = pytest.mark.benchmark

COUNTS = sized((1, 2, 4, 8, 16), (1, 2))
ROUNDS = sized(3, 1)
TOKENS = sized(48, 4)
# Of eight sequences together, against one.
LEAST_GAIN = 4.0


class Words(WordTokenizer):
    """As many words as GPT-2 has tokens."""

    text_size = 50257

    def __init__(self) -> None:
        super().__init__()
        for number in range(1, self.text_size):
            self.token(f" {number}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    folder = gpt2_124m(tmp_path_factory.mktemp("gpt2"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHATAPP_HOME", str(folder / "home"))
        decoder = load_decoder(ModelFiles.read(folder), precision="int8")
    model = LocalModel(decoder, Words(), name="gpt2")
    model.end_ids.clear()
    return model


def request(number: int) -> Request:
    draw = torch.Generator().manual_seed(number)
    ids = torch.randint(1, 50257, (64 + 3 * number,), generator=draw).tolist()
    return Request(ids, Sampling(seed=number, max_tokens=TOKENS, max_repeats=0))


def alone(model: LocalModel) -> float:
    *_, finished = model.generate(request(0))
    assert isinstance(finished, Finished)
    return finished.tokens_per_second


def together(model: LocalModel, count: int) -> float:
    """Tokens a second once all have joined."""
    batch = Batch(model, most=count)
    for number in range(count):
        batch.join(number, request(number))
    batch.step()
    started, tokens = time.perf_counter(), 0
    while not batch.is_empty:
        tokens += len(batch.step())
    return (tokens - count) / (time.perf_counter() - started)  # without the last events


def test_eight_at_once(model: LocalModel) -> None:
    best: dict[int, float] = {}
    one = 0.0
    for _ in range(ROUNDS):
        one = max(one, alone(model))
        for count in COUNTS:
            best[count] = max(best.get(count, 0.0), together(model, count))
    print(f"\nalone by `generate`  {one:6.0f} tokens/s")
    for count, rate in best.items():
        print(f"{count:2} at once           {rate:6.0f} tokens/s, {rate / one:.1f} times as many")
    check_finite(one, *best.values())
    if is_tiny():
        return
    tell("eight at once, times one", best[8] / one, LEAST_GAIN)
    assert best[8] > best[4] > best[2] > one
