"""What the widgets and threads of the chat tell the screen.

What belongs to a load or a turn stands with it, in `loading` and `turn`.

Keep: an event carries plain data (rows of the store, text), never a decision about the screen,
so that any widget may send it and any screen may answer it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from chatapp.dialogue.reading import Usage
    from chatapp.dialogue.session import Session
    from chatapp.dialogue.store.rows import StoredMessage
    from chatapp.models.catalogue import ListedModel
    from chatapp.models.known_models import KnownModel
    from chatapp.prompting.files.documents import DocumentSet


@dataclass
class Shown(Message):
    """The first frame is on the screen, and the prompt takes keys."""


@dataclass
class Submitted(Message):
    """The user has sent a text; `editing` is the message it takes the place of, if any."""

    text: str
    editing: "StoredMessage | None" = None


@dataclass
class ModelsFound(Message):
    """The models there are, as far as they have been found; `is_all` when no more will be.

    to_get: those with a short name that are not here.
    """

    models: "list[ListedModel]"
    to_get: "list[KnownModel]"
    is_all: bool


@dataclass
class Suggested(Message):
    """What a command that is being written could become.

    chosen: which of that stands in the prompt; -1 is none.
    """

    text: str
    completions: list[str]
    chosen: int = -1


@dataclass
class Measured(Message):
    """What the session's chat takes of the context window."""

    session: "Session"
    usage: "Usage"


@dataclass
class Unmeasured(Message):
    """The session's chat cannot be written as a prompt, and why, in words."""

    session: "Session"
    reason: str


@dataclass
class DocumentsRead(Message):
    """The chat's documents have been read, or cannot be, in words."""

    documents: "DocumentSet"
    words: str
    problem: str = ""
