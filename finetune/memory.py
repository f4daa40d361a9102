"""How much memory training took, on every system.

Keep: nothing here is needed to train; a system that does not tell a peak tells what is held now.
"""

import sys

import torch


def peak_memory() -> int:
    """Most bytes held so far: of the GPU where there is one, else of this process."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:  # Windows
        import psutil

        held = psutil.Process().memory_info()
        return int(getattr(held, "peak_wset", held.rss))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
