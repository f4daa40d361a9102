"""Screens over the chat, one-line inputs, notices, and lists of choices.

Invariants: a dialog closes once; a second request before it is gone, such as a second Enter,
changes nothing, and screens opened over it close with it. The value of a field never contains what
a terminal would obey. The lines of a list are foreign text, never parsed as markup.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.await_complete import AwaitComplete
from textual.content import Content
from textual.css.styles import RulesMap
from textual.events import Event, Mount
from textual.geometry import Size
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from chatapp.common.foreign import printable
from chatapp.tui.platform.actions import Acting, Action


class LeftOnce(Acting, Screen[ScreenResultType]):
    """A screen that closes once, even if Textual is asked again, or before it is mounted."""

    ALSO: ClassVar[tuple[Action, ...]] = (
        Action("Search all keys and commands", "f1", call="app.help", name="help"),
    )

    async def on_event(self, event: Event) -> None:
        # Closed at once, it composes nothing, and a Mount handler would look for widgets in vain.
        if not isinstance(event, Mount) or self.children:
            await super().on_event(event)

    def dismiss(self, result: ScreenResultType | None = None) -> AwaitComplete:
        """Close with a result; no effect when it is closed already."""
        if self not in self.app.screen_stack:
            return AwaitComplete()
        while self.app.screen is not self:
            self.app.pop_screen()
        self.workers.cancel_node(self)  # the screen for their output is about to close
        return super().dismiss(result)


# Textual takes a widget's style from the first of its bases.
class Dialog(ModalScreen[ScreenResultType], LeftOnce[ScreenResultType]):
    """A box over the chat, which takes all keys."""

    ALSO: ClassVar[tuple[Action, ...]] = (Action("Close", "escape", call="dismiss", name="close"),)

    @property
    def is_busy(self) -> bool:
        """Whether something runs that closing would stop."""
        return False


class Field(Input):
    """An Input whose value contains nothing that a terminal would obey."""

    def validate_value(self, value: str) -> str:
        return printable(value)


class Notice(Static):
    """A sentence that takes room only while there is one."""

    def __init__(self, words: str = "", *, id: str | None = None, classes: str = "") -> None:
        super().__init__(printable(words), id=id, classes=classes, markup=False)
        self.display = bool(words)

    def say(self, words: str | Content) -> None:
        """Show another sentence; "" is none."""
        self.update(printable(words) if isinstance(words, str) else words)
        self.display = bool(words)


_LEAST_WIDTH = 4


class PlainOptions(OptionList):
    """An OptionList without markup that ignores paging while it has no room on the screen.

    Textual's own looks for the line to turn the page from, and there are none yet; and it wraps
    lines at no width.
    """

    def __init__(self, *options: Any, id: str | None = None) -> None:
        super().__init__(*options, id=id, markup=False, compact=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return super().get_content_height(container, viewport, max(width, _LEAST_WIDTH))

    def action_page_up(self) -> None:
        if self.scrollable_content_region:
            super().action_page_up()  # type: ignore[no-untyped-call]

    def action_page_down(self) -> None:
        if self.scrollable_content_region:
            super().action_page_down()  # type: ignore[no-untyped-call]


_INDENT = " " * 4
"""Before the rows in which a long line goes on: they stand below its text, not below its signs."""


class _Indented(Visual):
    """A line of a list, with an indent where it is too long for one row."""

    def __init__(self, line: Content) -> None:
        self._line = line

    def __str__(self) -> str:
        return self._line.plain

    def _rows(self, width: int) -> list[Content]:
        is_long = self._line.cell_length > width
        return self._line.wrap(max(1, width - len(_INDENT))) if is_long else [self._line]

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return self._line.get_optimal_width(rules, container_width)

    def get_height(self, rules: RulesMap, width: int) -> int:
        return len(self._rows(width))

    def render_strips(
        self, width: int, height: int | None, style: Style, options: RenderOptions
    ) -> list[Strip]:
        rows = Content(f"\n{_INDENT}").join(self._rows(width))
        return rows.render_strips(width, height, style, options)


class MarkedOptions(PlainOptions):
    """Lines to choose from. A mark shows the chosen one on terminals without colours."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._contents: list[Content] = []

    def show(self, lines: Sequence[tuple[str, Content]], highlighted: int = 0) -> None:
        """Show other lines, each with an id; one of them is highlighted."""
        self.clear_options()
        self._contents = [line for _, line in lines]
        self.add_options(Option(_Indented(Content("  ") + line), id=id) for id, line in lines)
        self.highlighted = min(highlighted, len(lines) - 1) if lines else None
        self._mark_chosen()

    def on_option_list_option_highlighted(self) -> None:
        self._mark_chosen()

    def _mark_chosen(self) -> None:
        for index, line in enumerate(self._contents):
            mark = Content("› " if index == self.highlighted else "  ")
            self.replace_option_prompt_at_index(index, _Indented(mark + line))
