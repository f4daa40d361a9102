"""Stop strings, found in text that arrives in pieces.

Keep: for any reply and any way to cut it into pieces, what comes out is the reply up to the
first place where a stop string begins, and no character that could still belong to a stop
string comes out early.
"""

from collections.abc import Sequence


class StopFilter:
    """Text in, text out, until a stop string is met.

    hit: whether a stop string was met; nothing comes out any more.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        if "" in stop:
            raise ValueError("a stop string is empty; expected at least one character")
        self._stop = tuple(stop)
        self._held = ""
        self.hit = False

    def push(self, text: str) -> str:
        """The text that is certain to be visible once `text` is added."""
        if self.hit:
            return ""
        self._held += text
        match, possible = self._first_match(), self._first_possible()
        if match <= possible and match < len(self._held):
            self.hit = True
        visible = self._held[: min(match, possible)]
        self._held = self._held[len(visible) :]
        return visible

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        if self.hit:
            return ""
        match = self._first_match()
        self.hit = match < len(self._held)
        return self._held[:match]

    def _first_match(self) -> int:
        """Where the first stop string begins; the length of the held text if there is none."""
        starts = (self._held.find(stop) for stop in self._stop)
        return min((start for start in starts if start >= 0), default=len(self._held))

    def _first_possible(self) -> int:
        """Where the longest end of the held text that begins some stop string begins."""
        longest = 0
        for stop in self._stop:
            for size in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:size]):
                    longest = size
                    break
        return len(self._held) - longest
