"""Which device a model computes on, the CPU or a GPU of this machine, and its memory.

Invariant: the chosen device exists and works. A requested GPU that is missing is an error in one
sentence, never a silent change to the CPU. torch is not imported before a device is chosen.
"""

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
    """Of this machine, in bytes: all there is, and what programs can have now."""

    total: int
    available: int


def machine_memory() -> Memory:
    """What this machine has."""
    import psutil

    memory = psutil.virtual_memory()
    return Memory(memory.total, memory.available)
