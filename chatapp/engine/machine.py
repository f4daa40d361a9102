"""How much memory this machine has.

Keep: knows nothing of models, so that what computes them can ask.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Memory:
    """Of this machine, in bytes: all there is, and what programs can have now."""

    total: int
    available: int


def machine_memory() -> Memory:
    """What this machine has."""
    import psutil

    memory = psutil.virtual_memory()
    return Memory(memory.total, memory.available)
