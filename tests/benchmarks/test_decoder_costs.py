"""What decoding in int8 costs by itself: a look for Esc, memory, a longer context, exactness.

Run it with `pytest -m benchmark -s tests/benchmarks/test_decoder_costs.py` on a machine that does
nothing else. The model is a GPT-2 of 124 million random weights.
"""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
import torch
from decoders import Program, tell, text
from random_124m import gpt2_124m
from scale import check_finite, is_tiny, sized
from torch.nn import functional as F

from chatapp.engine.backends.local import LocalModel, load_decoder
from chatapp.engine.decoder.decoder import Decoder
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.models.loading import load_model

pytestmark = pytest.mark.benchmark

PROMPT, TURNS, REPLY = sized((64, 8, 100), (4, 2, 2))
LONG = sized(1000, 40)
SIZES = sized((64, 256, 512, 1000), (4, 8))
ROUNDS, PEAKS, TOKENS = sized((5, 3, 40), (1, 1, 1))
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHATAPP_HOME", str(tmp_path_factory.mktemp("home")))
        yield gpt2_124m(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def ours(folder: Path) -> Decoder:
    return load_decoder(ModelFiles.read(folder), precision="int8")


def test_a_long_prompt_can_be_left_at_once(ours: Decoder) -> None:
    """Esc is looked for whenever `check` is called."""
    longest = []
    for turn in range(ROUNDS):
        looked = [time.perf_counter()]
        ours.forward(
            text(LONG, turn),
            raise_if_cancelled=lambda looked=looked: looked.append(time.perf_counter()),
        )
        looked.append(time.perf_counter())
        longest.append(max(after - before for before, after in itertools.pairwise(looked)))
    print(f"\na prompt of {LONG} tokens: at most {median(longest) * 1e3:.0f} ms between looks")
    check_finite(*longest)
    assert is_tiny() or median(longest) <= 0.1


def test_the_memory_of_a_chat(folder: Path) -> None:
    bare = subprocess.run(
        [sys.executable, "-c", "import torch; print(open('/proc/self/status').read())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    torch_alone = int(bare.split("VmHWM:")[1].split()[0]) * 1024
    load_decoder(ModelFiles.read(folder), precision="int8")  # leaves the int8 weights on disk
    peaks = []
    for _ in range(PEAKS):
        program = Program("chatapp", folder)
        ids = text(PROMPT)
        for turn in range(TURNS):
            reply, _, _ = program.decode(ids, REPLY)
            ids = [*ids, *reply, *text(10, turn)]
        peaks.append(program.peak())
        program.close()
    above = median(peaks) - torch_alone
    print(f"\npeak after {len(ids)} tokens of chat: {above / 1e6:.0f} MB above torch alone")
    check_finite(*peaks)
    assert is_tiny() or above <= 400e6


def test_the_cost_of_a_longer_context(ours: Decoder) -> None:
    caches = {size: ours.new_cache() for size in SIZES}
    for size, cache in caches.items():
        ours.forward(text(size), cache)

    def token(size: int) -> None:
        ours.forward([1], caches[size])
        del caches[size].ids[size:]

    times: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(TOKENS):
        for size in SIZES:
            started = time.perf_counter()
            token(size)
            times[size].append(time.perf_counter() - started)
    found = {size: median(each) for size, each in times.items()}
    print()
    for size, value in found.items():
        bar = "█" * round(40 * value / max(found.values()))
        print(f"{size:6} tokens {value * 1e3:8.2f} ms {bar}")
    check_finite(*found.values())
    assert is_tiny() or found[1000] <= 1.25 * found[64]


def test_int8_is_near_float32() -> None:
    """On trained weights: random ones leave many tokens nearly level."""
    if not (named := os.environ.get("CHATAPP_BENCHMARK_MODEL")):
        pytest.skip("CHATAPP_BENCHMARK_MODEL names no model of trained weights")
    exact, rounded = (load_model(named, precision=p) for p in ("float32", "int8"))
    assert isinstance(exact, LocalModel)
    assert isinstance(rounded, LocalModel)
    ids = exact.tokenizer.encode((ROOT / "README.md").read_text(encoding="utf-8"))[:600]
    wanted, found = (m.decoder.forward(ids[:-1], all_positions=True) for m in (exact, rounded))
    losses = [float(F.cross_entropy(logits, torch.tensor(ids[1:]))) for logits in (wanted, found)]
    same = float((wanted.argmax(-1) == found.argmax(-1)).float().mean())
    print(f"\ncross-entropy {losses[0]:.4f} and {losses[1]:.4f} nats; same best token {same:.1%}")
    tell("same best token", same, 0.96)
    assert abs(losses[1] - losses[0]) < 0.01
    assert same >= 0.9
