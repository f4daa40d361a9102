"""Whether a benchmark measures, or is only tried at tiny sizes so that it cannot rot.

`pytest -m benchmark` measures, and so do the programs of this folder when they are called by
themselves; any other run of pytest tries, and looks at no time.
"""

import math
import os
from typing import TypeVar

_VARIABLE = "_CHATAPP_TINY_BENCHMARKS"

T = TypeVar("T")


def try_only() -> None:
    """From now on, here and in processes that are started, benchmarks are only tried."""
    os.environ[_VARIABLE] = "1"


def is_tiny() -> bool:
    return _VARIABLE in os.environ


def sized(full: T, tiny: T) -> T:
    """One of two sizes. To be called as late as when the module of a benchmark is imported."""
    return tiny if is_tiny() else full


def check_finite(*figures: float) -> None:
    """Raise AssertionError unless there are figures, all of them finite and above zero."""
    assert figures
    assert all(math.isfinite(figure) and figure > 0 for figure in figures), figures
