"""A model that is brought to this machine while the list of models is open.

Keep: it ends with exactly one `GetEnded`, whatever happens, and soon after it was stopped.
"""

import threading
from dataclasses import dataclass

from textual.message import Message
from textual.message_pump import MessagePump

from chatapp.tui.words import in_words


@dataclass
class GetSaid(Message):
    """What is done now, or has gone wrong and is tried again."""

    sentence: str


@dataclass
class GetProgress(Message):
    """How many bytes are here, and of how many."""

    done: int
    total: int


@dataclass
class GetEnded(Message):
    """The model is here, or why it is not, in words."""

    name: str
    problem: str = ""


class _Stopped(Exception):
    """The user does not want the model any more."""


class Getting:
    """Brings a model by its short name or id, and tells the listener."""

    def __init__(self, name: str, listener: MessagePump) -> None:
        self.name = name
        self._listener = listener
        self._stop = threading.Event()
        self._ended = threading.Event()

    @property
    def is_stopping(self) -> bool:
        """Whether it was stopped; it may take some seconds until it has ended."""
        return self._stop.is_set()

    def run(self) -> None:
        """Bring it. To be called on a thread."""
        from chatapp.engine.fetching import fetch

        problem = ""
        try:
            fetch(self.name, say=self._say, progress=self._progress)
        except _Stopped:
            problem = "Stopped. The next download goes on where this one ended."
        except Exception as error:
            # A broken installation fails in its own ways; what it says is for the user.
            problem = in_words(error)
        finally:
            self._ended.set()
        self._listener.post_message(GetEnded(self.name, problem))

    def stop(self, patience: float = 0) -> None:
        """Have it end. patience: how many seconds to wait for that."""
        self._stop.set()
        self._ended.wait(patience)

    def _say(self, sentence: str) -> None:
        self._tell(GetSaid(sentence))

    def _progress(self, done: int, total: int) -> None:
        self._tell(GetProgress(done, total))

    def _tell(self, message: Message) -> None:
        if self._stop.is_set():
            raise _Stopped
        self._listener.post_message(message)
