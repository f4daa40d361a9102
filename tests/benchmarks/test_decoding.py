"""Speed of a GPT-2 of 124 million random weights in int8, beside other programs.

Run it with `pytest -m benchmark -s tests/benchmarks/test_decoding.py` on a machine that does
nothing else; CTranslate2 and llama.cpp take part where they are installed. All get the same
weights, prompts and threads, each in a process of its own, and take turns; medians count.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest
import torch
from decoders import PROGRAMS, Program, table, tell, text
from random_124m import gpt2_124m
from scale import check_finite, is_tiny, sized

from chatapp.engine.backends.local import load_decoder
from chatapp.engine.decoder.decoder import Decoder
from chatapp.engine.files.model_files import ModelFiles

pytestmark = pytest.mark.benchmark

PROMPT, REPLY, PREFILL, HISTORY = sized((64, 128, 512, 800), (4, 2, 8, 24))
ROUNDS = sized(5, 1)
BLOCK = sized(2**25, 2**10)


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHATAPP_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt2_124m(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def programs(folder: Path) -> Iterator[dict[str, Program]]:
    """Those that are installed."""
    started = {name: Program(name, folder) for name in PROGRAMS}
    assert started["chatapp"].is_there
    assert started["transformers"].is_there
    yield {name: program for name, program in started.items() if program.is_there}
    for program in started.values():
        program.close()


@pytest.fixture(scope="module")
def ours(folder: Path) -> Decoder:
    return load_decoder(ModelFiles.read(folder), precision="int8")


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def test_decoding_and_prefill(programs: dict[str, Program], ours: Decoder) -> None:
    decodes: defaultdict[str, list[float]] = defaultdict(list)
    prefills: defaultdict[str, list[float]] = defaultdict(list)
    reads = []
    block = torch.ones(BLOCK, dtype=torch.int64)
    for turn in range(ROUNDS + 1):
        reads.append(seconds(block.sum))
        for name, program in programs.items():
            _, first, last = program.decode(text(PROMPT, turn), REPLY + 1)
            _, whole, _ = program.decode(text(PREFILL, 100 + turn), 1)
            if turn:  # the first turn warms up
                decodes[name].append((last - first) / REPLY)
                prefills[name].append(whole)
    token = {name: median(each) for name, each in decodes.items()}
    decode = table("a token", token)
    prefill = table(f"a prompt of {PREFILL} tokens", {n: median(p) for n, p in prefills.items()})
    share = ours.matrix_bytes / (block.nbytes / median(reads)) / token["chatapp"]
    print(f"share of the limit of reading {ours.matrix_bytes / 1e6:.0f} MB a token: {share:.0%}")
    tell("decoding, times transformers", decode["transformers"], 4.0)
    for name, wanted in (("llama_cpp", 1.3), ("ctranslate2", 1.0)):
        if name in decode:
            tell(f"decoding, times {name}", decode[name], wanted)
    others = [ratio for name, ratio in prefill.items() if name != "chatapp"]
    tell("a prompt, times the fastest other", min(others), 1.0)
    tell("share of the limit", share, 0.6)
    check_finite(*token.values(), *prefill.values())
    assert is_tiny() or decode["transformers"] > 1.0
    assert is_tiny() or prefill["transformers"] > 1.0


def test_the_first_token_of_a_later_turn(programs: dict[str, Program]) -> None:
    times: defaultdict[str, list[float]] = defaultdict(list)
    for turn in range(ROUNDS + 1):
        for name, program in programs.items():
            history = text(HISTORY - 16, 200 + turn)
            reply, _, _ = program.decode(history, 16)
            _, first, _ = program.decode([*history, *reply, *text(20, 300 + turn)], 1)
            if turn:
                times[name].append(first)
    ratios = table(
        f"the first token after {HISTORY} of history", {n: median(t) for n, t in times.items()}
    )
    check_finite(*ratios.values())
    if is_tiny():
        return
    for name, most in (("transformers", 0.1), ("ctranslate2", 0.1), ("llama_cpp", 1.0)):
        assert 1 / ratios.get(name, torch.inf) <= most
