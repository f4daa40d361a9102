"""All chats in one SQLite file.

Keep: this is the store's face; nothing outside imports from its modules, but for tests.
"""

from chatapp.dialogue.store.chats import (
    Basis,
    Chat,
    ChatSummary,
    Comparison,
    Feedback,
    Hit,
    Status,
    Store,
    StoredMessage,
    StoreError,
    Turn,
    Verdict,
)

__all__ = [
    "Basis",
    "Chat",
    "ChatSummary",
    "Comparison",
    "Feedback",
    "Hit",
    "Status",
    "Store",
    "StoreError",
    "StoredMessage",
    "Turn",
    "Verdict",
]
