"""A reply rendered as Markdown.

Invariant: it is foreign text. Nothing in it is opened, obeyed or left out: a link is shown and
never followed, HTML and entities are plain characters, and a text that is too long for the layout
stays plain.
"""

from markdown_it import MarkdownIt
from textual import on
from textual.widgets import Markdown

from chatapp.common.foreign import printable
from chatapp.tui.platform.textual_internals import plain_table

LONGEST = 20_000
"""Most characters of a rendered reply. Each of its blocks becomes a widget."""


def _parser() -> MarkdownIt:
    # An entity could encode a character that a terminal obeys, and Textual shows no HTML.
    return MarkdownIt("gfm-like", {"html": False}).disable("entity")


class RenderedBody(Markdown):
    """Text laid out as Markdown. Empty until the first `update`."""

    BLOCKS = {**Markdown.BLOCKS, "table_open": plain_table()}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(parser_factory=_parser, open_links=False)
        self.text = ""
        """The text that is laid out."""

    async def show(self, text: str) -> None:
        """Lay out a text; of one that has grown, only its end."""
        if text.strip() != self.text.strip():
            if not text.startswith(self.text):
                await self.update("")
                self.text = ""
            # What `update` has laid out, `append` would continue in the middle of a block.
            await self.append(printable(text[len(self.text) :]))
        self.text = text

    @on(Markdown.LinkClicked)
    def _tell_address(self, event: Markdown.LinkClicked) -> None:
        event.stop()
        self.notify(f"A link to {printable(event.href)}", markup=False)
