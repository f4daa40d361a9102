"""Replies, prompts and eight sequences at once beside llama.cpp and transformers, and beside busy
processes.

`SMOLLM2_GGUF=FILE pytest -m benchmark -s tests/benchmarks/test_kernels.py` on a machine that does
nothing else; llama.cpp takes part where the package xllamacpp is installed. Each program is a
process of its own, they take turns, and after a pause: llama.cpp's threads keep cores busy for a
while. Medians, least and most of the rounds.
"""

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pytest
import torch
from rivals import GPT2, QWEN3, SMOLLM2, Rival, convert, text, write_shape
from scale import check_finite, sized
from test_busy_machine import busy_process

pytestmark = pytest.mark.benchmark

TINY = {"width": 32, "layers": 1, "heads": 2, "inner": 64, "words": 400}
SHAPES = sized({"GPT-2 124M": GPT2, "Qwen3 0.6B": QWEN3}, {"GPT-2": TINY})
MODELS = [*sized(["SmolLM2", "bundled"], []), *SHAPES]
KINDS = {"int8": "q8_0", "int4": "q4_0", "float32": "f32"}
PAUSE = sized(0.3, 0.0)
BLOCK = sized(2**25, 2**10)
"""Numbers of 8 bytes whose reading shows the memory's speed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHATAPP_HOME", str(made / "home"))
        yield made


def file_of(folder: Path, model: str, kind: str) -> Path:
    path = folder / f"{model}.{kind}.gguf"
    if path.exists():
        return path
    if model in SHAPES:
        write_shape(path, kind, SHAPES[model])
        return path
    source = SMOLLM2
    if model == "bundled":
        source = folder / "bundled.gguf"
        command = [sys.executable, "-m", "chatapp", "models", "export", "bundled", str(source)]
        subprocess.run([*command, "--type", "f32", "--force"], check=True)
    convert(source, path, kind)
    return path


def seconds_to_read() -> float:
    block = torch.ones(BLOCK, dtype=torch.int64)
    started = time.perf_counter()
    block.sum()
    return time.perf_counter() - started


def show(what: str, found: dict[str, list[float]], unit: str) -> None:
    """The figures, and how many times as long as ours the others take."""
    ours = median(found["chatapp"])
    for name, each in found.items():
        ratio = median(each) / ours
        spread = f"{median(each):9.2f} ({min(each):.2f} to {max(each):.2f}) {unit}"
        print(f"  {what:14}{name:14}{spread:36}{ratio:6.2f}")


@pytest.mark.parametrize("precision", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_beside_other_programs(model: str, precision: str, folder: Path) -> None:
    if model == "SmolLM2" and not SMOLLM2.is_file():
        pytest.skip("SMOLLM2_GGUF names no file")
    path = file_of(folder, model, KINDS[precision])
    is_large = model == "Qwen3 0.6B"
    rounds = sized(3 if is_large else 5, 1)
    prompt, new, long = sized((32, 16 if is_large else 48, 512), (8, 2, 16))
    rivals = {
        "chatapp": Rival("chatapp", path, precision),
        "transformers": Rival("transformers", path, "float32"),
        **{f"llama.cpp, {n}": Rival("llama_cpp", path, str(n)) for n in sized((1, 2), ())},
    }
    found: defaultdict[str, defaultdict[str, list[float]]]
    found = defaultdict(lambda: defaultdict(list))
    try:
        assert rivals["chatapp"].is_there
        present = {name: rival for name, rival in rivals.items() if rival.is_there}
        ours = present["chatapp"]
        for turn in range(rounds + 1):
            reading = seconds_to_read()
            for name, rival in present.items():
                time.sleep(PAUSE)
                reply = rival.ask(reply=text(prompt, turn), new=new)
                time.sleep(PAUSE)
                read = rival.ask(prompt=text(long, 100 + turn)) if turn < 4 else None
                if turn:  # the first turn warms up
                    found["a token, ms"][name].append(1000 * reply)
                    if read is not None:
                        found["a prompt, s"][name].append(read)
            together = ours.ask(eight=text(prompt, turn), new=new)
            if turn:
                one = found["a token, ms"]["chatapp"][-1] / 1000
                found["eight"]["chatapp"].append(together * one)
                limit = ours.ask(bytes=True) / (8 * BLOCK / reading)
                found["limit"]["chatapp"].append(limit / one)
    finally:
        for rival in rivals.values():
            rival.close()
    print(f"\n{model}, {precision}; last column: times as long as ours takes")
    for what, figures in found.items():
        unit = {"eight": "times one", "limit": "of the limit"}.get(what, "")
        show(what, figures, unit)
        check_finite(*(each for some in figures.values() for each in some))


@pytest.mark.parametrize("busy", sized([0, 1, 2], [0]))
def test_beside_busy_processes(busy: int, folder: Path) -> None:
    models = [(name, kind) for name in MODELS[:1] for kind in sized(["int8", "int4"], ["int8"])]
    if models[0][0] == "SmolLM2" and not SMOLLM2.is_file():
        pytest.skip("SMOLLM2_GGUF names no file")
    from chatapp.engine.models.resolving import BUNDLED, model_folder

    files = {kind: file_of(folder, name, KINDS[kind]) for name, kind in models}
    files["float32"] = model_folder(BUNDLED)
    with ExitStack() as stack:
        for _ in range(busy):
            stack.enter_context(busy_process())
        for precision, path in files.items():
            ways = {
                "chatapp": Rival("chatapp", path, precision),
                "one thread": Rival("chatapp", path, precision, OMP_NUM_THREADS="1"),
            }
            found: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(sized(6, 2)):
                for name, way in ways.items():
                    # Long enough for a look at what other programs take.
                    times = [
                        way.ask(reply=text(16, turn), new=sized(32, 2)) for _ in range(sized(3, 1))
                    ]
                    if turn:
                        found[name].append(1000 * times[-1])
            for way in ways.values():
                way.close()
            print(f"\n{path.name}, {precision}, {busy} busy")
            show("a token, ms", found, "")
            check_finite(*found["chatapp"], *found["one thread"])
