"""All keys and commands: F1 with search, and the palette, which also saves pictures."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from textual import on
from textual.app import App, ComposeResult
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static, TextArea

from chatapp.common.extras import MissingPackage, require
from chatapp.common.foreign import printable
from chatapp.common.userfiles import reason, write_named
from chatapp.tui.chat.actions import ChatActions
from chatapp.tui.platform.actions import (
    Acting,
    Action,
    bindings_of,
    listed_actions,
    places,
    written,
)
from chatapp.tui.platform.textual_internals import keymap_of
from chatapp.tui.widgets.dialog import Dialog, Field, LeftOnce

_FONT = "DejaVu Sans Mono"
_OF_TEXTUAL = "Fira Code"
_SCALE = 2
"""Pixels for each of the SVG's, enough for a projector."""

_FIRST = ("Writing", "On a message", "Chat", "Everywhere")


class HelpSection(NamedTuple):
    """Keys of one place, with their effects, and the words by which a search finds each."""

    title: str
    rows: list[tuple[str, str, str]]

    def matching(self, query: str) -> "HelpSection":
        """Only those whose names, words or title contain all words of a query."""
        words = query.lower().split()
        rows = [
            row for row in self.rows if all(word in f"{self.title} {row}".lower() for word in words)
        ]
        return HelpSection(self.title, rows)

    def table(self, is_narrow: bool) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        width = 18 if is_narrow else None  # where there is room, keys are on one line
        table.add_column(width=width, min_width=18 if is_narrow else 23, style="bold")
        table.add_column()
        for key, does, _ in self.rows:
            table.add_row(key, does)
        return table


class HelpScreen(Dialog[None]):
    """Lists the keys of the current place, then all others and the commands, in sections.

    here: the focused widget and those around it.
    """

    BINDING_GROUP_TITLE = "This help"
    ALSO = (Action("Close", "f1", call="dismiss", name="help"),)

    def __init__(self, here: Iterable[DOMNode]) -> None:
        super().__init__()
        known = sorted(places(), key=lambda place: place.BINDING_GROUP_TITLE or "")
        first = [place for title in _FIRST for place in known if title == place.BINDING_GROUP_TITLE]
        self._here = [kind for node in here for kind in type(node).__mro__ if kind in known]
        self._others = [place for place in [*first, *known] if place not in self._here]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Help", classes="title")
            yield Field(placeholder="Search keys and commands", compact=True)
            yield VerticalScroll(can_focus=False)
            yield Static("Esc closes · ↑ ↓ PgUp PgDn scroll", classes="hint")

    async def on_mount(self) -> None:
        self._sections = list(self._all_sections())
        await self._show()

    @on(Input.Changed)
    async def _show(self) -> None:
        query = self.query_one(Field).value
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

    @Action("Scroll up", "up", call="scroll('up')", name="scroll_up")
    @Action("Scroll down", "down", call="scroll('down')", name="scroll_down")
    @Action("Scroll a page up", "pageup", call="scroll('page_up')", name="scroll_page_up")
    @Action("Scroll a page down", "pagedown", call="scroll('page_down')", name="scroll_page_down")
    def action_scroll(self, where: str) -> None:
        scroll = self.query_one(VerticalScroll)
        getattr(scroll, f"scroll_{where}")(animate=False)

    def _all_sections(self) -> Iterable[HelpSection]:
        yield from map(self._section, self._here)
        commands = [
            (f"/{entry.command} {entry.argument}".strip(), entry.command_words, entry.searched)
            for place in places()
            for entry in listed_actions(place)
            if entry.command
        ]
        yield HelpSection("Commands, written in place of a message", commands)
        yield from map(self._section, dict.fromkeys(self._others))
        for title, kind in (("Moving and copying", Screen), ("Editing text", TextArea)):
            keys = ((one.tooltip or one.description, one.key, "") for one in bindings_of(kind))
            yield _section(title, keys)

    def _section(self, place: type[Acting]) -> HelpSection:
        keymap = keymap_of(self.app)
        actions = listed_actions(place)
        keys = ((one.words, key, one.searched) for one in actions for key in one.keys(keymap))
        return _section(place.BINDING_GROUP_TITLE or "", keys)


def _section(title: str, keys: Iterable[tuple[str, str, str]]) -> HelpSection:
    """The keys of equal words stand together."""
    rows: dict[str, tuple[str, str, str]] = {}
    for words, key, searched in keys:
        names, _, known = rows.get(words, ("", "", ""))
        rows[words] = (f"{names} {written(key)}".lstrip(), words, f"{known} {searched}")
    return HelpSection(title, list(rows.values()))


class Palette(CommandPalette, LeftOnce[None]):
    """Textual's palette, which a second Enter does not close again."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "command_list" and not self.query_one(OptionList).scrollable_content_region:
            return False  # Textual looks for a line, and a list that is not drawn has none
        return super().check_action(action, parameters)


class PaletteActions(Provider):
    """All actions of the screen below the palette, each with its keys and its command."""

    async def discover(self) -> Hits:
        for text, _, run in self._entries():
            yield DiscoveryHit(Content(text), run, text)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for text, searched, run in self._entries():
            by_other_words = float(query.lower() in searched)
            if (score := matcher.match(text) or by_other_words) > 0:
                yield Hit(score, matcher.highlight(text), run, text)

    def _entries(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        """What is shown of each, the other words by which it is found, and what it does."""
        entries: dict[str, tuple[str, Callable[[], object]]] = {}
        for node in self._nodes():
            for entry in node.ACTIONS if isinstance(node, Acting) else ():
                if run := self._runner(node, entry):
                    entries.setdefault(self._text(entry), (entry.searched, run))
        yield from ((text, *entry) for text, entry in entries.items())
        for name in sorted(self.app.available_themes):
            yield f"Theme: {printable(name)}", "", partial(setattr, self.app, "theme", name)
        for suffix in (".svg", ".png"):
            save = partial(save_screen, self.app, suffix)
            words = f"Save the screen as {suffix[1:].upper()}, in this folder"
            yield words, "", partial(self.app.call_after_refresh, save)

    def _nodes(self) -> list[DOMNode]:
        """The screen and the focused widgets, and in a chat its prompt and a message."""
        focused, screen = self.screen.focused, self.screen
        nodes: list[DOMNode] = list(focused.ancestors_with_self) if focused is not None else []
        if isinstance(screen, ChatActions):
            nodes += [screen.widgets.prompt, *screen.widgets.transcript.views[-1:]]
        return list(dict.fromkeys([screen, *nodes, self.app]))

    def _text(self, entry: Action) -> str:
        keys = map(written, entry.keys(keymap_of(self.app)))
        command = f"/{entry.command}" if entry.command else ""
        return f"{entry.words}  {' '.join(filter(None, [*keys, command]))}"

    def _runner(self, node: DOMNode, entry: Action) -> Callable[[], object] | None:
        """What an entry does, if it can be used now."""
        if not entry.key and isinstance(node, ChatActions):
            text = f"/{entry.command}{' ' if entry.argument else ''}"
            return partial(node.widgets.prompt.give_back, text)  # to be completed and sent
        if "." not in entry.method and not node.check_action(entry.method, ()):
            return None
        return partial(self.app.run_action, entry.call, node)


async def save_screen(app: App[Any], suffix: str) -> None:
    """Write the current screen into a new file of this folder. suffix: .svg or .png."""
    path = Path(time.strftime("chatapp-%Y-%m-%d-%H%M%S")).with_suffix(suffix)
    svg = app.export_screenshot(title="chatapp")
    try:
        await asyncio.to_thread(lambda: write_named(path, svg if suffix == ".svg" else png(svg)))
    except (OSError, ValueError, MissingPackage) as error:
        app.notify(f"{path}: cannot be written: {reason(error)}", severity="error", markup=False)
    else:
        app.notify(printable(f"The screen is saved as {path.absolute()}."), markup=False)


def png(svg: str) -> bytes:
    """An SVG picture of Textual as PNG. Takes about a second."""
    require("matplotlib")
    import matplotlib
    from resvg_py import svg_to_bytes

    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return bytes(
        svg_to_bytes(
            svg_string=svg.replace(_OF_TEXTUAL, _FONT),
            font_files=[str(fonts / f"DejaVuSansMono{kind}.ttf") for kind in ("", "-Bold")],
            monospace_family=_FONT,
            skip_system_fonts=True,
            zoom=_SCALE,
        )
    )
