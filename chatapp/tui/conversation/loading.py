"""A model while it is loaded on a thread, and what the thread tells the screen about it.

Keep: an answer names the request it belongs to, so that one to an older request, which may come
after that to a newer one, can be told apart and dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message
from textual.message_pump import MessagePump

from chatapp.tui.words import in_words

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
        from chatapp.engine.used_models import note_model

        try:
            model = self.load()
            if note:
                note_model(model.name)
        except Exception as error:
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
