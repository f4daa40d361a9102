"""How fast a model is while other programs keep cores of the machine busy.

Run it with `pytest -m benchmark -s tests/benchmarks/test_busy_machine.py` on a machine that
does nothing else. Writing, reading, scoring and training are timed beside none, one and two
processes that never rest: as the program is started, as torch starts by itself, and with a
single thread, each in a process of its own. Medians of three.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from random_124m import gpt2_124m
from scale import check_finite, is_tiny, sized

ROOT = Path(__file__).parents[2]
ROUNDS = sized(3, 1)
LEAST = sized(0.3, 0.0)
"""Seconds of work that a round has at least."""
SLOW = 4.0
"""Seconds of a round after which there is no other."""
PROMPT, LONG, ROWS, LENGTH = sized((64, 512, 4, 256), (8, 16, 1, 8))

OWN, BEFORE, ONE = "as it is", "as torch starts", "one thread"
Timed = Callable[[], tuple[int, float]]
"""Does some work; returns its tokens and the seconds it took."""


def environments() -> dict[str, dict[str, str]]:
    """Of each way to compute; with a number of threads in it, the program chooses none."""
    import torch

    from chatapp.engine.kernels.threads import wait_briefly

    bare = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMP_", "GOMP_", "KMP_"))
    }
    bare["PYTHONPATH"] = str(ROOT)
    own = dict(bare)
    wait_briefly(own)
    every = str(torch.get_num_threads())
    return {
        OWN: own,
        BEFORE: bare | {"OMP_NUM_THREADS": every},
        ONE: bare | {"OMP_NUM_THREADS": "1"},
    }


# Ends with the process that started it, whatever ends that.
SPIN = """
import os
parent = os.getppid()
while os.getppid() == parent:
    pass
"""


@contextmanager
def busy_process() -> Iterator[None]:
    """A program in a session of its own, as a browser beside a terminal is."""
    process = subprocess.Popen([sys.executable, "-c", SPIN], start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def figures(model: str, environment: dict[str, str]) -> dict[str, float]:
    """Tokens a second by kind of work, from a process in this environment."""
    command = [sys.executable, __file__, model]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.benchmark
@pytest.mark.skipif(sys.platform != "linux", reason="libgomp is what torch brings on Linux")
@pytest.mark.parametrize("busy", sized([0, 1, 2], [0]))
@pytest.mark.parametrize("model", sized(["bundled", "124M"], ["bundled"]))
def test_beside_busy_programs(model: str, busy: int, tmp_path: Path) -> None:
    name = model if model == "bundled" else str(gpt2_124m(tmp_path))
    with ExitStack() as stack:
        for _ in range(busy):
            stack.enter_context(busy_process())
        ways = environments()
        found = {way: figures(name, ways[way]) for way in sized(ways, [OWN])}
    print(f"\n{model}, {busy} busy; tokens a second (first: 1 over the seconds to the first)")
    for way, values in found.items():
        print(f"  {way:16}", *(f"{kind} {value:,.1f}" for kind, value in values.items()))
    check_finite(*found[OWN].values())
    if is_tiny():
        return
    for kind, speed in found[OWN].items():
        # Training keeps the number of its threads, and waits for the one without a core.
        bar = 3 if kind == "train" else 2
        assert speed >= max(values[kind] for values in found.values()) / bar, kind
        assert busy or speed >= 0.75 * found[BEFORE][kind], kind


def _measure(name: str) -> dict[str, float]:
    from chatapp.engine.backends.local import LocalModel
    from chatapp.engine.model import Request, Sampling
    from chatapp.engine.models.loading import load_model

    model = load_model(name)
    assert isinstance(model, LocalModel)
    model.end_ids = set()
    draw = random.Random(0)
    firsts: list[float] = []

    def text(size: int) -> list[int]:
        return [draw.randrange(model.vocabulary) for _ in range(size)]

    def write() -> tuple[int, float]:
        times = [time.perf_counter()]
        for _ in model.generate(Request(text(PROMPT), Sampling(seed=0, max_tokens=PROMPT))):
            times.append(time.perf_counter())
            if times[-1] - times[0] > 2 * LEAST and len(times) > 2:
                break
        firsts.append(times[1] - times[0])
        return len(times) - 2, times[-1] - times[1]

    def read() -> tuple[int, float]:
        ids, started = text(LONG), time.perf_counter()
        next(model.generate(Request(ids, Sampling(seed=0))))
        return len(ids), time.perf_counter() - started

    def score() -> tuple[int, float]:
        prompt, started = text(150), time.perf_counter()
        model.score([(prompt, text(2)) for _ in range(6)])
        return 162, time.perf_counter() - started

    speeds = {"write": _speed(write), "first": 1 / median(firsts)}
    speeds |= {"read": _speed(read), "score": _speed(score)}
    if name == "bundled":
        speeds["train"] = _speed(_training(name, model.vocabulary))
    return speeds


def _training(name: str, vocabulary: int) -> Timed:
    """A step of the optimiser on some rows."""
    import torch

    from chatapp.engine.backends.transformers_loading import load_causal
    from chatapp.engine.models.resolving import find_model
    from finetune.training.adapters import fuse_activations

    network: Any = load_causal(find_model(name))
    fuse_activations(network)
    network.train()
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-5)

    def step() -> tuple[int, float]:
        ids = torch.randint(0, vocabulary, (ROWS, LENGTH))
        started = time.perf_counter()
        network(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return ids.numel(), time.perf_counter() - started

    return step


def _speed(work: Timed) -> float:
    """Tokens a second, after a first time that reserves memory."""
    tokens, seconds = work()
    if seconds > SLOW:
        return tokens / seconds
    speeds = []
    for _ in range(ROUNDS):
        tokens, seconds = work()
        while seconds < LEAST:
            more, longer = work()
            tokens, seconds = tokens + more, seconds + longer
        speeds.append(tokens / seconds)
        if seconds > SLOW:
            break
    return median(speeds)


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1])))
