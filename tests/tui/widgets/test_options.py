"""A list to choose from keeps still where there is nothing to see of it."""

import pytest
from textual.app import App, ComposeResult

from chatapp.tui.widgets.dialog import Options


class Lists(App[None]):
    """A list of three lines, so many rows high."""

    def __init__(self, height: int) -> None:
        super().__init__()
        self._height = height

    def compose(self) -> ComposeResult:
        options = Options("[bold]one", "two", "three")
        options.styles.height = self._height
        yield options


@pytest.mark.parametrize(("height", "last"), [(0, 0), (3, 2)])
async def test_a_page_down_turns_only_what_is_seen(height: int, last: int) -> None:
    app = Lists(height)
    async with app.run_test() as pilot:
        options = app.query_one(Options)
        options.highlighted = 0
        options.focus()
        await pilot.press("pagedown")
        assert options.highlighted == last
        await pilot.press("pageup")
        assert options.highlighted == 0
