"""All keys and commands.

Keep: the lists are made from where keys and commands are defined, so that none is forgotten.
"""

from collections.abc import Sequence
from typing import ClassVar

from rich.table import Table
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.dom import DOMNode
from textual.screen import ModalScreen
from textual.widgets import Static

from chatapp.tui.keymap import bindings_of, words_of
from chatapp.tui.slash import COMMANDS


def _table() -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=23, style="bold")
    table.add_column()
    return table


class HelpScreen(ModalScreen[None]):
    """Lists the bindings of `places`, a section for each, in the given order."""

    BINDING_GROUP_TITLE = "This help"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q", "dismiss", "Close")]

    def __init__(self, places: Sequence[tuple[str, type[DOMNode]]]) -> None:
        super().__init__()
        self._places = places

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Keys", classes="title")
            with VerticalScroll(can_focus=True):
                for title, place in self._places:
                    yield Static(title, classes="heading", markup=False)
                    yield Static(self._rows(place), classes="keys")
                yield Static("Commands, written in place of a message", classes="heading")
                yield Static(self._commands(), classes="keys")
            yield Static("Esc closes · ↑ ↓ PgUp PgDn scroll", classes="hint")

    def _commands(self) -> Table:
        table = _table()
        for command in COMMANDS:
            table.add_row(f"/{command.name} {command.argument}", command.words)
        return table

    def _rows(self, place: type[DOMNode]) -> Table:
        keys: dict[str, list[str]] = {}
        for binding in bindings_of(place, self.app._keymap):
            keys.setdefault(words_of(binding), []).append(self.app.get_key_display(binding))
        table = _table()
        for words, names in keys.items():
            table.add_row(" ".join(names), words)
        return table
