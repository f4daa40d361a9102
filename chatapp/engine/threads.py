"""How the threads that compute wait for one another, settled before torch is loaded.

torch computes on the threads of OpenMP, which meet after every operation: in libgomp, whose
copy torch brings on Linux, the first to arrive spins for 300,000 rounds, 4 ms on the machine
measured. That is as long as the scheduler leaves a core to another program, so beside a single
one, each of some hundred meetings a token may last that long.

Keep: only the waiting is chosen here, never the number of threads. Sums are split among the
threads, so with another number of them results differ in their last bits, and what a seed
gives would depend on what else the machine does.
"""

from collections.abc import MutableMapping

# Rounds of spinning before a thread sleeps until it is woken: 130 µs where 300,000 are 4 ms.
SPINS = 10_000

# What a user may have chosen a way of waiting with; libgomp prefers the second.
_CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def wait_briefly(environment: MutableMapping[str, str]) -> None:
    """Let OpenMP's threads sleep soon, unless the environment says how they are to wait.

    environment: of this process, in which nothing has loaded torch, because libgomp reads it
    once; or of a process to start.
    """
    if not any(name in environment for name in _CHOICES):
        environment["GOMP_SPINCOUNT"] = str(SPINS)
