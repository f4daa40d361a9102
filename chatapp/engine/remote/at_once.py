"""Several requests to a server at once, each on a thread of its own.

Keep: requests are taken, and their events given, on the thread of whoever asks for these; when it
leaves, no request goes on.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from queue import SimpleQueue

from chatapp.engine.events import Event, Finished

MOST_AT_ONCE = 4
"""Requests: as many as a small server computes side by side; others let them wait."""

Begin = Callable[[threading.Event], Iterator[Event]]
"""Asks for a reply. Setting the event that it is given ends that."""


def at_once(replies: Iterable[Begin]) -> Iterator[tuple[int, Event]]:
    """The events of each reply with its number, from 0, as they come.

    replies: taken one by one, each as soon as there is room for it. One that raises ValueError
    ends as `error` with the reason as its message, and the others go on.
    """
    arrived: SimpleQueue[tuple[int, Event | Exception]] = SimpleQueue()
    given_up = threading.Event()

    def draw(number: int, begin: Begin) -> None:
        try:
            for event in begin(given_up):
                arrived.put((number, event))
        except ValueError as error:  # ContextOverflow is one
            arrived.put((number, Finished("error", message=str(error))))
        except Exception as error:
            arrived.put((number, error))

    waiting, going_on = enumerate(replies), 0
    try:
        while True:
            for upcoming in islice(waiting, MOST_AT_ONCE - going_on):
                threading.Thread(target=draw, args=upcoming, daemon=True).start()
                going_on += 1
            if not going_on:
                return
            number, event = arrived.get()
            if isinstance(event, Exception):
                raise event
            going_on -= isinstance(event, Finished)
            yield number, event
    finally:
        given_up.set()
