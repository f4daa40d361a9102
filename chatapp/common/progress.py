"""How long work reports how far it is."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with the amount of finished work, and the total, in steps, rows, texts or bytes. What it
raises ends the work.
"""


def no_progress(done: int, total: int) -> None:
    """Nobody is waiting."""
