"""Several replies drawn in turn, on one thread.

Keep: what befalls one of them, its end or its failure, is its own alone.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

_Event = TypeVar("_Event")


def interleaved(
    replies: Sequence[Iterator[_Event]],
) -> Iterator[tuple[int, _Event | Exception]]:
    """The events of each reply with its number, from 0: one of each at a time, the first one first.

    An exception is the last of its reply's.
    """
    going_on = dict(enumerate(replies))
    while going_on:
        for number, events in list(going_on.items()):
            try:
                event = next(events)
            except StopIteration:
                del going_on[number]
            except Exception as error:
                del going_on[number]
                yield number, error
            else:
                yield number, event
