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
from textual.screen import ModalScreen, Screen
from textual.widgets import Static, TextArea

from chatapp.tui.branches import BranchScreen
from chatapp.tui.comparing import CompareScreen
from chatapp.tui.history import ChatList, HistoryScreen
from chatapp.tui.inspector.attention import AttentionView
from chatapp.tui.inspector.heatmap import HeatMap
from chatapp.tui.inspector.panel import Inspector
from chatapp.tui.inspector.step import StepView
from chatapp.tui.inspector.token_text import TokenText
from chatapp.tui.keymap import bindings_of, words_of
from chatapp.tui.library import LibraryScreen
from chatapp.tui.models import ModelScreen
from chatapp.tui.parameters import ParametersScreen
from chatapp.tui.ranking import RankScreen
from chatapp.tui.slash import COMMANDS
from chatapp.tui.textual_internals import keymap_of

_SCREENS: tuple[type[DOMNode], ...] = (
    HistoryScreen,
    ChatList,
    ModelScreen,
    ParametersScreen,
    RankScreen,
    BranchScreen,
    CompareScreen,
    LibraryScreen,
    Inspector,
    TokenText,
    AttentionView,
    HeatMap,
    StepView,
)


def _table() -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=23, style="bold")
    table.add_column()
    return table


class HelpScreen(ModalScreen[None]):
    """Lists the bindings of `places`, then those of all other screens, a section for each."""

    BINDING_GROUP_TITLE = "This help"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q", "dismiss", "Close")]

    def __init__(self, places: Sequence[type[DOMNode]]) -> None:
        super().__init__()
        sections: list[type[DOMNode]] = [*places, *_SCREENS, HelpScreen]
        self._sections = [(place.BINDING_GROUP_TITLE or "", place) for place in sections]
        self._sections += [("Moving and copying", Screen), ("Editing text", TextArea)]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Keys", classes="title")
            with VerticalScroll(can_focus=True):
                for title, place in self._sections:
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
        for binding in bindings_of(place, keymap_of(self.app)):
            keys.setdefault(words_of(binding), []).append(self.app.get_key_display(binding))
        table = _table()
        for words, names in keys.items():
            table.add_row(" ".join(names), words)
        return table
