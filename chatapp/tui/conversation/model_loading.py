"""Loading and downloading models on threads, and their events."""

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
    """A request for a model; each one is unique.

    precision: in which `load` loads it.
    """

    load: "Callable[[], LanguageModel]"
    precision: str

    def run(self, listener: MessagePump, *, note: bool) -> None:
        """Load, and post the result to the listener. Called on a thread.

        note: whether to remember the model's folder.
        """
        from chatapp.engine.models.resolving import note_model

        try:
            model = self.load()
            if note:
                note_model(model.name)
        except BaseException as error:
            # A broken installation can raise anything; its message is for the user.
            listener.post_message(LoadFailed(self, in_words(error)))
        else:
            listener.post_message(ModelLoaded(self, model))


@dataclass
class ModelLoaded(Message):
    """The model is loaded."""

    request: LoadRequest
    model: "LanguageModel"


@dataclass
class LoadFailed(Message):
    """Loading failed, with the reason."""

    request: LoadRequest
    reason: str


@dataclass
class GetSaid(Message):
    """The next step of a download, or an error before a retry."""

    sentence: str


@dataclass
class GetProgress(Message):
    """The number of downloaded bytes, and their total."""

    done: int
    total: int


@dataclass
class GetEnded(Message):
    """The download has ended, with the reason of a failure."""

    name: str
    problem: str = ""


class _Stopped(Exception):
    """The user has stopped the download."""


class Getting:
    """Downloads a model by its short name or id, and informs the listener."""

    def __init__(self, name: str, listener: MessagePump) -> None:
        self.name = name
        self._listener = listener
        self._stop = threading.Event()
        self._ended = threading.Event()

    @property
    def is_stopping(self) -> bool:
        """Whether it was stopped; its end may take some seconds."""
        return self._stop.is_set()

    def run(self) -> None:
        """Download the model. Called on a thread."""
        from chatapp.engine.models.fetching import fetch

        problem = ""
        try:
            fetch(self.name, say=self._say, progress=self._progress)
        except _Stopped:
            problem = "Stopped. The next download continues where this one ended."
        except BaseException as error:
            # A broken installation can raise anything; its message is for the user.
            problem = in_words(error)
        finally:
            self._ended.set()
        self._listener.post_message(GetEnded(self.name, problem))

    def stop(self, patience: float = 0) -> None:
        """Stop the download. patience: seconds to wait for its end."""
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
