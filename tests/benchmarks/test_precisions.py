"""What each precision loses against float32, and whether sequences in company stay what they are.

`SHARED_DATA=DATA SMOLLM2_GGUF=FILE pytest -m benchmark -s tests/benchmarks/test_precisions.py`:
perplexity of SmolLM2 on WikiText-2's test text, cut into windows, the share of positions whose
likeliest token is that of float32, and texts of eight sequences at once and alone.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rivals import SMOLLM2
from scale import check_finite, is_tiny, sized
from shared_data import shared_data
from torch.nn import functional as F

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.kernels.precision import has_kernels
from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.resolving import BUNDLED

pytestmark = pytest.mark.benchmark

WINDOWS, WINDOW, REPLY = sized((24, 512, 40), (1, 24, 4))
OTHERS = ("int8", "int4", "bfloat16")


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHATAPP_HOME", str(tmp_path_factory.mktemp("home")))
        yield


def load(precision: str) -> LocalModel:
    if not is_tiny() and not SMOLLM2.is_file():
        pytest.skip("SMOLLM2_GGUF names no file")
    model = load_model(BUNDLED if is_tiny() else str(SMOLLM2), precision=precision)
    assert isinstance(model, LocalModel)
    return model


def windows(model: LocalModel) -> list[list[int]]:
    path = shared_data() / "text" / "wikitext2_test.txt"
    if not is_tiny() and not path.is_file():
        pytest.skip("the shared data is not there; name its folder in SHARED_DATA")
    text = Path(__file__).read_text("utf-8") if is_tiny() else path.read_text("utf-8")
    ids = model.tokenizer.encode(text[: WINDOWS * WINDOW * 8])
    found = [ids[n * WINDOW : (n + 1) * WINDOW] for n in range(WINDOWS)]
    assert all(len(window) == WINDOW for window in found)
    return found


def test_what_precisions_lose() -> None:
    exact = load("float32")
    texts = windows(exact)
    logits = [exact.decoder.forward(ids, all_positions=True).half() for ids in texts]
    print(f"\n{WINDOWS} windows of {WINDOW} tokens; perplexity, equal likeliest tokens")
    for precision in ("float32", *OTHERS):
        model = load(precision)
        losses, equal = [], []
        for ids, wanted in zip(texts, logits, strict=True):
            found = model.decoder.forward(ids, all_positions=True)
            losses.append(float(F.cross_entropy(found[:-1], torch.tensor(ids[1:]))))
            equal.append(float((found.half().argmax(-1) == wanted.argmax(-1)).float().mean()))
        perplexity = math.exp(sum(losses) / len(losses))
        print(f"  {precision:10}{perplexity:9.3f}{sum(equal) / len(equal):9.2%}")
        check_finite(perplexity, sum(equal))


@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
def test_sequences_in_company_give_what_they_give_alone(precision: str) -> None:
    if not has_kernels():
        pytest.skip("torch's sums of several rows have another order than those of one")
    model = load(precision)
    model.end_ids.clear()
    sampling = Sampling(temperature=0.0, max_tokens=REPLY)
    prompts = [window[: 9 + 2 * n] for n, window in enumerate(windows(model)[:8])]
    requests = [Request(ids, sampling) for ids in prompts]
    alone = ["".join(event.text for event in model.generate(request)) for request in requests]
    together = [""] * len(requests)
    for number, event in model.generate_many(requests):
        together[number] += event.text
    assert together == alone
