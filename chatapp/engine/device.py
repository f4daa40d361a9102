"""Which device a model computes on: the processor, or a GPU of this machine.

Keep: what is chosen is there. A GPU that is asked for and missing is an error in words, never
a silent change to the processor.
"""

import torch

from chatapp.engine.checkpoint import ModelError

# Smaller models are read from the processor's cache; a GPU only makes their start longer.
_GPU_FROM = 2**25


def device_for(device: str, precision: str, parameters: int) -> torch.device:
    """The device that "auto" stands for: a GPU for large models, if there is one.

    device: of `DEVICES`. precision: int8 is multiplied on the processor alone.
    parameters: weights in the matrices of the model.
    Raises ModelError when the device is not there or cannot do what is asked of it.
    """
    if device == "auto":
        if precision == "int8" or parameters < _GPU_FROM:
            return torch.device("cpu")
        return torch.device(next(filter(_is_there, ("cuda", "mps")), "cpu"))
    if not _is_there(device):
        raise ModelError(f"device is {device!r}, which torch does not find here; choose cpu")
    if precision == "int8" and device != "cpu":
        raise ModelError(f"int8 is multiplied on the processor, not on {device}; choose bfloat16")
    return torch.device(device)


def _is_there(device: str) -> bool:
    if device == "cuda":
        return torch.cuda.is_available()
    return device == "cpu" or torch.backends.mps.is_available()
