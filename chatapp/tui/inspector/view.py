"""What all tabs of the inspector share: how a tab looks at a text, and what it asks for.

Keep: a view shows one `Look`, and asks the inspector, never the model, for what has to be
computed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from textual.containers import Vertical
from textual.content import Content
from textual.message import Message

from chatapp.tui.inspector.look import Look


@dataclass
class Compute(Message):
    """A view wants `work` done on a thread, and then `show` with what it gives.

    fail: is told instead, in words, why it could not be done. slot: a newer request of the
    same name makes this one void; "" is never void.
    """

    work: Callable[[], Any]
    show: Callable[[Any], None]
    fail: Callable[[str], None]
    slot: str = ""


@dataclass
class Branch(Message):
    """The user wants another reply that begins with the tokens `begin`."""

    message_id: int
    begin: tuple[int, ...]


class View(Vertical):
    """One tab. hint: its main keys, in words."""

    hint = ""

    def legend(self) -> Content:
        """What its colours say; empty when it says so itself."""
        return Content()

    def show(self, look: Look) -> None:
        """Show another text."""
        raise NotImplementedError

    def take_focus(self) -> None:
        """Give the keys to the first widget that takes them."""
        for widget in self.query("*"):
            if widget.can_focus and widget.display:
                widget.focus()
                return
