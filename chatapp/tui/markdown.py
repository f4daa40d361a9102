"""A reply shown as the Markdown it is written in.

The one invariant: it is foreign text. Nothing in it is opened, obeyed or left out: a link is
shown and never followed, HTML and entities are plain characters, and what is too long to be
laid out at once stays as it was written.
"""

from markdown_it import MarkdownIt
from textual import on
from textual.app import ComposeResult
from textual.widgets import Markdown
from textual.widgets._markdown import (
    MarkdownTable,
    MarkdownTableCellContents,
    MarkdownTableContent,
)

from chatapp.foreign import printable

LONGEST = 20_000
"""Characters of a reply that is still laid out. A widget is made of each of its blocks."""


def _parser() -> MarkdownIt:
    # An entity could stand for a character that a terminal obeys, and Textual shows no HTML.
    return MarkdownIt("gfm-like", {"html": False}).disable("entity")


class PlainTableContent(MarkdownTableContent):
    """The cells of a table without tooltips, whose text Textual would read as markup."""

    def compose(self) -> ComposeResult:
        for header in self.headers:
            yield MarkdownTableCellContents(header, classes="header")
        for number, row in enumerate(self.rows, 1):
            for cell in row:
                yield MarkdownTableCellContents(cell, classes=f"row{number} cell")


class PlainTable(MarkdownTable):
    """A table of those cells."""

    def compose(self) -> ComposeResult:
        headers, rows = self._get_headers_and_rows()
        yield PlainTableContent(headers, rows)


class RenderedBody(Markdown):
    """Text laid out as Markdown. Empty until it is given one with `update`."""

    BLOCKS = {**Markdown.BLOCKS, "table_open": PlainTable}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(parser_factory=_parser, open_links=False)

    async def show(self, text: str) -> None:
        """Lay out a text."""
        await self.update(printable(text))

    @on(Markdown.LinkClicked)
    def _tell_address(self, event: Markdown.LinkClicked) -> None:
        event.stop()
        self.notify(f"A link to {printable(event.href)}", markup=False)
