"""The messages that were sent while a reply is being written, above the prompt.

Invariant: a message is shown here until it is sent or back in the prompt.
"""

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from chatapp.common.foreign import printable
from chatapp.tui.platform.actions import shown_key

_MOST = 3
"""Rows of messages."""
_LENGTH = 300
"""Characters of a message of which a row may show some."""


class QueuedMessages(Static):
    """Hidden while no message waits."""

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.display = False

    def show(self, texts: Sequence[str]) -> None:
        """Show the messages that wait, the next one first."""
        key = shown_key(self.app, "earlier_input", "↑")
        rows = [" ".join(printable(text[:_LENGTH]).split()) for text in texts[:_MOST]]
        shown = [Content.assemble(("queued  ", "$text-warning"), row) for row in rows]
        more = f" · {len(texts) - _MOST} more" if len(texts) > _MOST else ""
        hint = f"sent after this reply{more} · {key} in the empty prompt takes the last one back"
        self.display = bool(texts)
        self.update(Content("\n").join([*shown, Content.styled(hint, "dim")]))
