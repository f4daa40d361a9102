"""A model while it is loaded on a thread, and what the thread tells the screen about it.

Keep: an answer names the request it belongs to, so that one to an older request, which may come
after that to a newer one, can be told apart and dropped.

A model that is brought to this machine while the list of models is open.

Keep: it ends with exactly one `GetEnded`, whatever happens, and soon after it was stopped.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message
from textual.message_pump import MessagePump

from chatapp.tui.platform.runtime import in_words

if TYPE_CHECKING:
    from chatapp.engine.model import LanguageModel


@dataclass(frozen=True, slots=True, eq=False)
class LoadRequest:
    """A model to go on with; two requests are never the same one.

    precision: what `load` loads it in.
    """

    load: "Callable[[], LanguageModel]"
    precision: str

    def run(self, listener: MessagePump, *, note: bool) -> None:
        """Load, and tell the listener how it went. To be called on a thread.

        note: whether to remember the model's folder.
        """
        from chatapp.models.resolving import note_model

        try:
            model = self.load()
            if note:
                note_model(model.name)
        except BaseException as error:
            # A broken installation fails in its own ways; what it says is for the user.
            listener.post_message(LoadFailed(self, in_words(error)))
        else:
            listener.post_message(ModelLoaded(self, model))


@dataclass
class ModelLoaded(Message):
    """The model is there."""

    request: LoadRequest
    model: "LanguageModel"


@dataclass
class LoadFailed(Message):
    """The model is not there, and why, in words."""

    request: LoadRequest
    reason: str


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
        from chatapp.models.fetching import fetch

        problem = ""
        try:
            fetch(self.name, say=self._say, progress=self._progress)
        except _Stopped:
            problem = "Stopped. The next download goes on where this one ended."
        except BaseException as error:
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
