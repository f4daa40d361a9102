"""A text to read that is too long for a notice."""

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from chatapp.common.foreign import printable
from chatapp.tui.platform.actions import Action
from chatapp.tui.widgets.dialog import Dialog


class PageScreen(Dialog[None]):
    """Shows a text under a title."""

    BINDING_GROUP_TITLE = "A page to read"
    ALSO = (Action("Close", "escape,enter", call="dismiss", name="close"),)

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._title, classes="title", markup=False)
            with VerticalScroll():
                yield Static(printable(self._text), markup=False)
            yield Static("↑ ↓ PgUp PgDn scroll · Esc closes", classes="hint")
