"""Events from widgets and threads of the chat to the screen.

Those of a load or a turn are in `loading` and `turn`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from chatapp.dialogue.reading import Usage
    from chatapp.dialogue.session import Session
    from chatapp.dialogue.store.rows import StoredMessage
    from chatapp.engine.models.catalogue import ListedModel
    from chatapp.engine.models.known_models import KnownModel


@dataclass
class Shown(Message):
    """The first frame is on the screen, and the prompt takes keys."""


@dataclass
class Submitted(Message):
    """The user has sent a text; `editing` is the message that it replaces, if any.

    in_place: it replaces the text of a reply itself, and does not count as a correction of it.
    contents: those of its files, which follow the text in the message.
    """

    text: str
    editing: "StoredMessage | None" = None
    in_place: bool = False
    contents: str = ""


@dataclass
class Pasted(Message):
    """A text was pasted into the prompt."""

    text: str


@dataclass
class ModelsFound(Message):
    """The known models; `is_all` when the search has ended.

    to_get: those with a short name that are not here.
    """

    models: "list[ListedModel]"
    to_get: "list[KnownModel]"
    is_all: bool


@dataclass
class Suggested(Message):
    """Completions of the command in the prompt.

    chosen: the one in the prompt; -1 is none.
    """

    text: str
    completions: list[str]
    chosen: int = -1


@dataclass
class UsageCounted(Message):
    """The chat's share of the context window."""

    session: "Session"
    usage: "Usage"


@dataclass
class UsageUnknown(Message):
    """The chat cannot be rendered as a prompt, with the reason."""

    session: "Session"
    reason: str
