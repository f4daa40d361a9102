"""The speed of a model on this machine, and its limit.

Decoding reads every matrix once per token, so the time to read that many bytes is a limit for any
program while the weights do not fit into the CPU's cache.
"""

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from chatapp.engine.backends.local import LocalModel
from chatapp.engine.generation import LocalGenerator
from chatapp.engine.kernels.linear import precision_for
from chatapp.engine.kernels.native import kernels
from chatapp.engine.model import Sampling
from chatapp.engine.models.description import WEIGHT_BYTES, ModelSizes, memory_needed
from chatapp.engine.models.known_models import KnownModel
from chatapp.engine.sampling import Sampler
from chatapp.tasks.evaluation.peer import Peer, PeerSpeed

PROMPT = 64
PREFILL = 512
DECODE = 64
REPEATS = 3
# Bytes: far more than a cache holds, and on a GPU enough to outlast the start of the reading.
_READ = {"cpu": 2**28, "cuda": 2**31, "mps": 2**28}


@dataclass(frozen=True, slots=True)
class Speed:
    """Medians of some repetitions.

    prefill, decode: tokens per second; prefill of `prefill_tokens`, decoding of `decode_tokens`
    after `prompt_tokens`. bandwidth: bytes read per second. device: "cpu", "mps", or the name of a
    cuda device. threads: used at the end. kernels: the code that multiplies, and why. matrix_bytes,
    limit_share: bytes of weights read per token, and the decoding speed relative to that of reading
    alone; None for models whose weights this program does not hold. peer: llama.cpp, if asked for.
    """

    precision: str
    device: str
    threads: int
    prefill_tokens: int
    prefill: float
    prompt_tokens: int
    decode_tokens: int
    decode: float
    bandwidth: float
    matrix_bytes: int | None
    limit_share: float | None
    kernels: str
    peer: PeerSpeed | None


def measure(model: LocalGenerator, peer: Peer | None = None) -> Speed:
    """Measure the speed of a local model, and of a peer in turns with it. Raises UserError."""
    draw = random.Random(0)

    def text(size: int) -> list[int]:
        return [draw.randrange(model.vocabulary) for _ in range(size)]

    # Both fit into the smallest windows.
    prefill = min(PREFILL, model.context - 1)
    prompt = min(PROMPT, model.context // 2)
    decode = min(DECODE, model.context - prompt)
    _decode(model, text(prompt), text(2))  # the first passes reserve memory
    device = model.device
    prefills, decodes, reads = [], [], []
    peer_prefills, peer_decodes = [], []  # for each round, with each number of threads
    for _ in range(REPEATS):
        reads.append(_seconds_to_read(device))
        prefills.append(_seconds(partial(_decode, model, text(prefill - 1), text(1))))
        start = text(prompt)
        _decode(model, start, text(2))  # on a GPU, the second token makes a recording
        decodes.append(_seconds(partial(_decode, model, start, text(decode))))
        if peer is not None:
            peer_prefills.append([read for read, _ in peer.seconds(text(prefill), 1)])
            peer_decodes.append([wrote for _, wrote in peer.seconds(start, decode)])
    bandwidth = _READ[device.type] / median(reads)
    speed = decode / median(decodes)
    size = model.decoder.matrix_bytes if isinstance(model, LocalModel) else None
    with model.lock:
        threads = torch.get_num_threads()
    return Speed(
        precision=model.decoder.precision if isinstance(model, LocalModel) else "float32",
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        threads=threads,
        prefill_tokens=prefill,
        prefill=prefill / median(prefills),
        prompt_tokens=prompt,
        decode_tokens=decode,
        decode=speed,
        bandwidth=bandwidth,
        matrix_bytes=size,
        limit_share=None if size is None else speed * size / bandwidth,
        kernels=kernels().reason,
        peer=None
        if peer is None
        else PeerSpeed(
            peer.version,
            peer.kind,
            prefill / min(map(median, zip(*peer_prefills, strict=True))),
            decode / min(map(median, zip(*peer_decodes, strict=True))),
        ),
    )


@dataclass(frozen=True, slots=True)
class SpeedEstimate:
    """What a model would need on this machine's CPU: its precision, bytes of memory, and the tokens
    per second that it cannot exceed, because each reads all weights.
    """

    precision: str
    memory: int
    speed: float


def estimate(models: Iterable[KnownModel]) -> dict[str, SpeedEstimate]:
    """An estimate for each model, by name, from its shape and the measured speed of the memory."""
    cpu = torch.device("cpu")
    bandwidth = _READ["cpu"] / _seconds_to_read(cpu)
    estimates = {}
    for model in models:
        sizes = ModelSizes(layers=None, heads=None, **model.shape)
        precision = precision_for("auto", sizes.parameters, cpu)
        speed = bandwidth / (sizes.parameters * WEIGHT_BYTES[precision])
        estimates[model.name] = SpeedEstimate(precision, memory_needed(sizes, precision), speed)
    return estimates


def _decode(model: LocalGenerator, start: list[int], rest: list[int]) -> None:
    """Compute and draw a token after each of `rest`, which are read whatever was drawn."""
    sampler, ids = Sampler(Sampling(seed=0)), list(start)
    with torch.inference_mode():
        for id in rest:
            ids.append(id)
            with model.lock:
                sampler.draw(model.next_logits(ids, lambda: None)[0], ids)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _seconds_to_read(device: torch.device) -> float:
    block = torch.ones(_READ[device.type] // 8, dtype=torch.int64, device=device)

    def read() -> None:
        block.sum().item()  # a GPU is waited for

    return min(_seconds(read) for _ in range(3))
