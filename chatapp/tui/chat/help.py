"""All keys and commands, with search.

Invariant: the lists come from the definitions of keys and commands, so they are complete; those of
the current place come first.
"""

from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from rich.table import Table
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widgets import Input, Static, TextArea

from chatapp.tui.chat.slash import COMMANDS
from chatapp.tui.inspector.choosing import HeatMap, TokenText
from chatapp.tui.inspector.compare import CompareView
from chatapp.tui.inspector.head_tabs import AttentionView, HeadsView, WhyView
from chatapp.tui.inspector.panel import Inspector
from chatapp.tui.inspector.step import StepView
from chatapp.tui.inspector.view import CloserView, CloseUpView
from chatapp.tui.platform.keymap import bindings_of, words_of
from chatapp.tui.platform.textual_internals import keymap_of
from chatapp.tui.screens.branches import BranchScreen
from chatapp.tui.screens.compare import CompareScreen
from chatapp.tui.screens.copying import CopyScreen
from chatapp.tui.screens.history import ChatList, HistoryScreen
from chatapp.tui.screens.library import LibraryScreen
from chatapp.tui.screens.models import ModelScreen
from chatapp.tui.screens.page import PageScreen
from chatapp.tui.screens.parameters import ParametersScreen
from chatapp.tui.screens.ranking import RankScreen
from chatapp.tui.screens.sources import SourceScreen
from chatapp.tui.screens.teaching import LearnScreen, TraceScreen
from chatapp.tui.widgets.dialog import Dialog, Field
from chatapp.tui.widgets.find import FindBar
from chatapp.tui.widgets.lesson import LessonPanel

_SCREENS: tuple[type[DOMNode], ...] = (
    FindBar,
    CopyScreen,
    HistoryScreen,
    ChatList,
    ModelScreen,
    ParametersScreen,
    RankScreen,
    BranchScreen,
    CompareScreen,
    LibraryScreen,
    LearnScreen,
    TraceScreen,
    SourceScreen,
    PageScreen,
    LessonPanel,
    Inspector,
    TokenText,
    AttentionView,
    HeatMap,
    HeadsView,
    CompareView,
    StepView,
    WhyView,
    CloserView,
    CloseUpView,
)


class Section(NamedTuple):
    """Keys of one place, with their effects."""

    title: str
    rows: list[tuple[str, str]]

    def matching(self, query: str) -> "Section":
        """Only those whose names, with the title, contain all words of a query."""
        words = query.lower().split()
        rows = [
            (key, does)
            for key, does in self.rows
            if all(word in f"{self.title} {key} {does}".lower() for word in words)
        ]
        return Section(self.title, rows)

    def table(self, is_narrow: bool) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        width = 18 if is_narrow else None  # where there is room, keys are on one line
        table.add_column(width=width, min_width=18 if is_narrow else 23, style="bold")
        table.add_column()
        for row in self.rows:
            table.add_row(*row)
        return table


class HelpScreen(Dialog[None]):
    """Lists the keys of the current place, then all others and the commands, in sections.

    places: widgets of the chat screen with keys. here: the focused widget and those around it.
    """

    BINDING_GROUP_TITLE = "This help"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close"),
        Binding("f1", "dismiss", "Close", show=False, id="help"),
        Binding("up", "scroll('up')", "Scroll up", show=False),
        Binding("down", "scroll('down')", "Scroll down", show=False),
        Binding("pageup", "scroll('page_up')", "Scroll a page up", show=False),
        Binding("pagedown", "scroll('page_down')", "Scroll a page down", show=False),
    ]

    def __init__(self, places: Iterable[type[DOMNode]], here: Iterable[type[DOMNode]]) -> None:
        super().__init__()
        known: list[type[DOMNode]] = [*places, *_SCREENS, HelpScreen]
        self._here = [place for place in here if place in known]
        self._others = [place for place in known if place not in self._here]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Help", classes="title")
            yield Field(placeholder="Search keys and commands", compact=True)
            yield VerticalScroll(can_focus=False)
            yield Static("Esc closes · ↑ ↓ PgUp PgDn scroll", classes="hint")

    async def on_mount(self) -> None:
        self._sections = list(self._all_sections())
        await self._show("")

    @on(Input.Changed)
    async def _search(self, event: Input.Changed) -> None:
        await self._show(event.value)

    async def _show(self, query: str) -> None:
        sections = [section.matching(query) for section in self._sections]
        widgets: list[Static] = []
        for section in filter(lambda section: section.rows, sections):
            widgets.append(Static(section.title, classes="heading", markup=False))
            widgets.append(Static(section.table(self.app.size.width < 80), classes="keys"))
        scroll = self.query_one(VerticalScroll)
        with self.app.batch_update():
            await scroll.remove_children()
            await scroll.mount_all(widgets or [Static("No key and no command matches.")])
        scroll.scroll_home(animate=False)

    def action_scroll(self, where: str) -> None:
        scroll = self.query_one(VerticalScroll)
        getattr(scroll, f"scroll_{where}")(animate=False)

    def _all_sections(self) -> Iterable[Section]:
        for place in self._here:
            yield self._section(place.BINDING_GROUP_TITLE or "", place)
        commands = [
            (f"/{command.name} {command.argument}".strip(), command.words) for command in COMMANDS
        ]
        yield Section("Commands, written in place of a message", commands)
        for place in self._others:
            yield self._section(place.BINDING_GROUP_TITLE or "", place)
        yield self._section("Moving and copying", Screen)
        yield self._section("Editing text", TextArea)

    def _section(self, title: str, place: type[DOMNode]) -> Section:
        app: App[object] = self.app
        keys: dict[str, list[str]] = {}
        for binding in bindings_of(place, keymap_of(app)):
            keys.setdefault(words_of(binding), []).append(app.get_key_display(binding))
        return Section(title, [(" ".join(names), words) for words, names in keys.items()])
