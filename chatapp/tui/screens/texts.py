"""Texts to read over the chat: a page, the passages behind a reply, and the chat to copy from."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.events import Key
from textual.widgets import OptionList, Static
from textual.widgets.text_area import Selection

from chatapp.common.foreign import printable
from chatapp.tui.platform.actions import Action
from chatapp.tui.platform.textual_internals import LongTextArea
from chatapp.tui.widgets.dialog import Dialog, PlainOptions
from chatapp.tui.widgets.message import SPEAKERS
from chatapp.tui.widgets.rendered import source_place

if TYPE_CHECKING:
    from chatapp.dialogue.documents.sources import Source
    from chatapp.dialogue.store.rows import StoredMessage


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


class SourceScreen(Dialog[None]):
    """Lists the sources of a reply above the text of the highlighted one."""

    BINDING_GROUP_TITLE = "Sources of a reply"

    def __init__(self, sources: "Sequence[Source]") -> None:
        super().__init__()
        self._sources = sources

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Sources, nearest first", classes="title")
            yield PlainOptions(*map(_row, self._sources))
            with VerticalScroll(can_focus=False):
                yield Static(id="source-file", markup=False)
                yield Static(id="source-text", markup=False)
            yield Static("↑ ↓ choose · Esc closes", classes="hint")

    @on(OptionList.OptionHighlighted)
    def _show(self, event: OptionList.OptionHighlighted) -> None:
        source = self._sources[event.option_index]
        self.query_one("#source-file", Static).update(printable(_near(source.file)))
        self.query_one("#source-text", Static).update(printable(f"\n{source.text}"))
        self.query_one(VerticalScroll).scroll_home(animate=False)


def _near(path: str) -> str:
    """A path relative to the current folder, if it is below it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path


def _row(source: "Source") -> str:
    left_out = "" if source.number else "  (left out for length)"
    return f"{source.score:7.3f}  {source_place(source)}{left_out}"


_HINT = "v selects, V whole lines · y or Enter copies · Esc closes"
_ARROWS = {
    "left": "cursor_left",
    "right": "cursor_right",
    "up": "cursor_up",
    "down": "cursor_down",
    "home": "cursor_line_start",
    "end": "cursor_line_end",
}


class ChatText(LongTextArea):
    """A text to move in, and to select from."""

    def __init__(self, text: str) -> None:
        super().__init__(text, read_only=True, show_line_numbers=False, compact=True)
        self._begin: tuple[int, int] | None = None
        self._is_by_line = False

    def on_mount(self) -> None:
        self.move_cursor(self.document.end)

    def on_key(self, event: Key) -> None:
        """Begin a selection, or extend it."""
        if event.key in ("v", "V"):
            self._begin = None if self._begin is not None else self.cursor_location
            self._is_by_line = event.key == "V"
            self._extend()
        elif name := _ARROWS.get(event.key):
            move = getattr(self, f"action_{name}")
            # Without `select`, the first step only leaves the selection.
            move(self._begin is not None)
        else:
            return
        event.stop()
        event.prevent_default()

    def on_text_area_selection_changed(self) -> None:
        self._extend()

    def _extend(self) -> None:
        """Select from the place of the v to the cursor."""
        if self._begin is None:
            return
        begin, end = self._begin, self.cursor_location
        if self._is_by_line:
            first, last = sorted((begin, end))
            begin, end = (first[0], 0), (last[0], len(self.document.get_line(last[0])))
            if self._begin > self.cursor_location:
                begin, end = end, begin
        if self.selection != Selection(begin, end):
            self.selection = Selection(begin, end)

    @property
    def chosen(self) -> str:
        """The selected text, or else the line of the cursor."""
        return self.selected_text or self.document.get_line(self.cursor_location[0])


class CopyScreen(Dialog[str]):
    """Returns the text to copy; "" for none."""

    BINDING_GROUP_TITLE = "Copying from the chat"
    ALSO = (Action("Close", "escape,q", priority=True, call="dismiss('')", name="close"),)

    def __init__(self, messages: "Sequence[StoredMessage]") -> None:
        super().__init__()
        parts = [f"{SPEAKERS[message.role]}\n{message.text}" for message in messages]
        self._text = printable("\n\n".join(parts))

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Copy from the chat", classes="title")
            yield ChatText(self._text)
            yield Static(_HINT, classes="hint")

    @Action("Copy the selection, or the line", "y,enter", priority=True, name="copy_selection")
    def action_copy(self) -> None:
        self.dismiss(self.query_one(ChatText).chosen)
