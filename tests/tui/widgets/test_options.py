"""Lists to choose from: paging without room, and lines that are too long."""

import pytest
from textual.app import App
from textual.content import Content

from chatapp.tui.widgets.dialog import MarkedOptions, PlainOptions


class Lists(App[None]):
    """A list of three lines, so many rows high."""

    def __init__(self, height):
        super().__init__()
        self._height = height

    def compose(self):
        options = PlainOptions("[bold]one", "two", "three")
        options.styles.height = self._height
        yield options


@pytest.mark.parametrize(("height", "last"), [(0, 0), (3, 2)])
async def test_a_page_down_turns_only_what_is_seen(height, last):
    app = Lists(height)
    async with app.run_test() as pilot:
        options = app.query_one(PlainOptions)
        options.highlighted = 0
        options.focus()
        await pilot.press("pagedown")
        assert options.highlighted == last
        await pilot.press("pageup")
        assert options.highlighted == 0


class Marked(App[None]):
    """A list with a line that is longer than its width."""

    def compose(self):
        options = MarkedOptions()
        options.styles.width = 24
        options.show(
            [("one", Content("● pirate  answers as a pirate would")), ("two", Content("x"))]
        )
        yield options


async def test_a_long_line_goes_on_below_its_text():
    app = Marked()
    async with app.run_test() as pilot:
        await pilot.pause()
        rows = [app.query_one(MarkedOptions).render_line(y).text.rstrip() for y in range(4)]
        assert rows == ["› ● pirate  answers", "    as a pirate would", "  x", ""]
