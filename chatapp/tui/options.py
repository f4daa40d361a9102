"""A list of lines to choose from, which are foreign text."""

from typing import Any

from textual.widgets import OptionList


class Options(OptionList):
    """An OptionList without markup that keeps still while it has no room on the screen.

    Textual's own looks for the line to turn the page from, and there are none yet.
    """

    def __init__(self, *options: Any, id: str | None = None) -> None:
        super().__init__(*options, id=id, markup=False, compact=True)

    def action_page_up(self) -> None:
        if self.scrollable_content_region:
            super().action_page_up()  # type: ignore[no-untyped-call]

    def action_page_down(self) -> None:
        if self.scrollable_content_region:
            super().action_page_down()  # type: ignore[no-untyped-call]
