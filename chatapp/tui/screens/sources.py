"""The passages of documents for a reply, to read them.

Invariant: the passages are those of the prompt, stored with the reply; no file is opened, so a
deleted or changed file hides nothing.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import OptionList, Static

from chatapp.common.foreign import printable
from chatapp.tui.widgets.dialog import Dialog, Options
from chatapp.tui.widgets.rendered import source_place

if TYPE_CHECKING:
    from chatapp.dialogue.documents.sources import Source


class SourceScreen(Dialog[None]):
    """Lists the sources of a reply above the text of the highlighted one."""

    BINDING_GROUP_TITLE = "Sources of a reply"

    def __init__(self, sources: "Sequence[Source]") -> None:
        super().__init__()
        self._sources = sources

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Sources, nearest first", classes="title")
            yield Options(*map(_row, self._sources))
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
