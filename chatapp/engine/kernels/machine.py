"""What of this machine computes: the CPU or a GPU, its memory, how many threads, and how they wait
for one another.

torch computes on the threads of OpenMP, which meet after every operation, some hundred times a
token. In libgomp, which torch brings on Linux, the first to arrive spins for 300,000 rounds,
4 ms: that wastes time while another program holds the core that the last thread needs. Measured
on two cores, tokens per second written by the bundled model: with one busy program 4 on two
threads that spin so, 600 on two that do not spin, 600 on one thread; on an idle machine 680, 120
and 600, and a prompt is read at 17,000 on two threads and at 9,000 on one. GPT-2 124M with one
busy program: 1 on two threads, 30 on one. So threads spin for a short time, and there are no more
of them than free cores.

Invariants: the chosen device exists and works. A requested GPU that is missing is an error in one
sentence, never a silent change to the CPU. torch is not imported before a device is chosen. On a
machine with free cores, this module changes nothing in torch, and the user's settings of OpenMP are
kept. Another number of threads adds in another order, so that results differ in their last bits;
therefore training keeps the number it began with.
"""

import math
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chatapp.engine.errors import ModelError

if TYPE_CHECKING:
    import torch


# Smaller models are read from the CPU's cache; a GPU only makes their start longer.
_GPU_FROM = 2**25

# GPU memory that "auto" requires, in bytes per parameter: weights and activations.
_BYTES_PER_PARAMETER = 5


def device_for(device: str, precision: str, parameters: int) -> "torch.device":
    """The device that "auto" means: a GPU for large models that fit into its memory.

    device: of `DEVICES`. precision: int8 and int4 are multiplied on the CPU alone.
    parameters: weights in the matrices of the model.
    Raises ModelError if the device does not exist or cannot compute in this precision.
    """
    import torch

    if device == "auto":
        if precision in ("int8", "int4") or parameters < _GPU_FROM:
            return torch.device("cpu")
        if _works("cuda") and torch.cuda.mem_get_info()[0] > _BYTES_PER_PARAMETER * parameters:
            return torch.device("cuda")
        return torch.device("mps" if _works("mps") else "cpu")
    if device != "cpu" and not _works(device):
        raise ModelError(f"device is {device!r}, which torch cannot use here; choose cpu")
    if device != "cpu" and precision in ("int8", "int4"):
        raise ModelError(f"{precision} is multiplied on the CPU, not on {device}; choose bfloat16")
    return torch.device(device)


def _works(device: str) -> bool:
    """Whether torch can compute there: a GPU may be found and be too old for this build."""
    import torch

    try:
        return bool(torch.ones(1, device=device).sum() == 1)
    except (AssertionError, RuntimeError):  # a build without cuda asserts that it has it
        return False


@dataclass(frozen=True, slots=True)
class Memory:
    """This machine's memory, in bytes: all there is, and what programs can have now."""

    total: int
    available: int


def machine_memory() -> Memory:
    """What this machine has."""
    import psutil

    memory = psutil.virtual_memory()
    return Memory(memory.total, memory.available)


def processor_name() -> str:
    """What the processor calls itself, as far as it is known."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# Rounds of spinning before a thread sleeps: 260 µs. With 10,000 of them the bundled model writes a
# third less on a machine with free cores; with 30,000, training while another program is busy takes
# more than twice as long as on one thread.
SPINS = 20_000

# Seconds from one look at the machine to the next: /proc/stat counts hundredths of a second.
LOOK_EVERY = 0.25

# After so many seconds without a look, the mean since then says nothing about now.
_STALE = 10.0
_SAMPLES, _APART = 3, 0.001

# What other programs may take of a core that still counts as free.
_SLACK = 0.3

_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_NUMBER = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def wait_briefly(environment: MutableMapping[str, str]) -> None:
    """Let OpenMP's threads sleep soon, unless the environment says how they are to wait.

    environment: of this process, in which nothing has loaded torch, because libgomp reads it
    once; or of a process to start.
    """
    if not any(name in environment for name in _WAITING):
        environment["GOMP_SPINCOUNT"] = str(SPINS)


def thread_count(most: int, cores: int, taken: float) -> int:
    """How many threads to compute on: at most one for each free core, and at least one.

    most: torch's own number. cores: of the machine. taken: how many of them other programs
    keep busy; at least half of one for each that competes with a thread of ours.
    """
    return max(1, min(most, math.floor(cores - taken + _SLACK)))


def seconds_of_others() -> float | None:
    """Seconds, over all cores, that other processes have computed; None where it is unknown.

    Only a difference of two looks has a meaning.
    """
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, interrupts, soft, *_ = map(int, file.readline().split()[1:])
    except (OSError, ValueError):
        return None
    ticks = user + nice + system + interrupts + soft
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


def threads_of_others() -> int | None:
    """How many threads of other processes compute now or could; None where it is unknown.

    The least of some looks within milliseconds: much of what runs on an idle machine is over then.
    """
    counts = []
    for look in range(_SAMPLES):
        if look:
            time.sleep(_APART)
        try:
            with open("/proc/stat", "rb") as file:
                running = next(int(line.split()[1]) for line in file if line[:9] == b"procs_run")
            own = 0
            for thread in os.listdir("/proc/self/task"):
                with open(f"/proc/self/task/{thread}/stat", "rb") as file:
                    own += file.read(512).rpartition(b") ")[2][:1] == b"R"
        except (OSError, StopIteration):
            return None
        counts.append(running - own)
    return max(0, min(counts))


_START = time.monotonic(), seconds_of_others()
"""When this process began, or nearly; the first token is computed on the threads that the machine
has had free since then."""


class ComputeLock:
    """A lock under which torch computes on as many threads as there are free cores.

    others, now, clock, cores, start: as this machine has them; environment: with the user's
    choices.
    """

    def __init__(
        self,
        others: Callable[[], float | None] = seconds_of_others,
        now: Callable[[], int | None] = threads_of_others,
        clock: Callable[[], float] = time.monotonic,
        cores: int | None = None,
        environment: Mapping[str, str] = os.environ,
        start: tuple[float, float | None] = _START,
    ) -> None:
        self._lock = threading.Lock()
        self._others, self._now, self._clock = others, now, clock
        self._cores = cores or os.cpu_count() or 1
        self._may_choose = not any(name in environment for name in _NUMBER)
        self._looked, self._seconds = start
        self._taken = 0.0
        self._most = 0

    def __enter__(self) -> None:
        import torch  # not before the environment is set

        self._lock.acquire()
        # For torch, the number belongs to the thread that computes.
        self._most = torch.get_num_threads()
        if self._most > 1 and self._may_choose:
            self._look()
            torch.set_num_threads(thread_count(self._most, self._cores, self._taken))

    def __exit__(self, *_: object) -> None:
        import torch

        if torch.get_num_threads() != self._most:
            torch.set_num_threads(self._most)
        self._lock.release()

    def _look(self) -> None:
        now = self._clock()
        passed = now - self._looked
        if passed < LOOK_EVERY:
            return
        seconds = self._others()
        if passed > _STALE:
            self._taken = self._now() or 0
        elif seconds is not None and self._seconds is not None:
            self._taken = (seconds - self._seconds) / passed
        self._looked, self._seconds = now, seconds
