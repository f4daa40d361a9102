"""All chats in one SQLite file.

Keep: this is the store's face; nothing outside imports from its modules, but for tests.
"""

from chatapp.dialogue.store.database import Gone, StoreError
from chatapp.dialogue.store.replies import DeletionStore
from chatapp.dialogue.store.rows import (
    Basis,
    Chat,
    ChatSummary,
    Comparison,
    Deleted,
    Feedback,
    Generation,
    Hit,
    Status,
    StoredMessage,
    Verdict,
)

__all__ = [
    "Basis",
    "Chat",
    "ChatSummary",
    "Comparison",
    "Deleted",
    "Feedback",
    "Generation",
    "Gone",
    "Hit",
    "Status",
    "Store",
    "StoreError",
    "StoredMessage",
    "Verdict",
]


class Store(DeletionStore):
    """The chats of one file. Usable from any thread; several processes may have it open.

    Every method raises StoreError when the file cannot be read or written, and when the
    chat, message or generation asked for does not exist.
    """
