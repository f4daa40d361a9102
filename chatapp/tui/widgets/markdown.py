"""Replies laid out as Markdown, in one widget each.

A widget for each block, as in Textual's own Markdown, would make every layout of a long chat
slow: with 25 replies there are hundreds of them. Here rich lays out the rows, and only the last
block of a reply that is being written is laid out again.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from markdown_it import MarkdownIt
from pygments.token import Comment, Error, Keyword, Name, Number, String, Token
from rich.cells import cell_len
from rich.markdown import CodeBlock, Heading, Markdown
from rich.segment import Segment
from rich.style import Style as RichStyle
from rich.syntax import Syntax, SyntaxTheme
from rich.theme import Theme
from textual.geometry import Size
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from chatapp.common.foreign import printable

if TYPE_CHECKING:
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token as MarkdownToken
    from rich.console import Console, ConsoleOptions, RenderResult

LONGEST = 20_000
"""Most characters of a rendered reply."""

_CODE = {
    Comment: "comment",
    Keyword: "keyword",
    Name.Builtin: "name",
    Name.Class: "name",
    Name.Decorator: "name",
    Name.Function: "name",
    Number: "number",
    String: "string",
}
"""The kinds of words in code that have a style of their own."""

_STYLES = {
    **{f"markdown.h{level}": "heading" for level in range(1, 7)},
    "markdown.code": "inline-code",
    "markdown.block_quote": "quote",
    "markdown.item.bullet": "mark",
    "markdown.item.number": "mark",
    "markdown.link": "link",
    "markdown.link_url": "quote",
    "markdown.hr": "quote",
    "markdown.table.border": "quote",
    "markdown.table.header": "strong",
    "markdown.strong": "strong",
    "markdown.em": "emphasis",
    "markdown.s": "struck",
}
"""Rich's names of styles, and the components of the widget that have them."""


class _CodeTheme(SyntaxTheme):
    """The styles of code: those of the widget's components."""

    def __init__(self, styles: dict[str, RichStyle]) -> None:
        self._styles = styles

    def get_style_for_token(self, token_type: Any) -> RichStyle:
        while token_type is not Token:
            if token_type in _CODE:
                return self._styles[_CODE[token_type]]
            if token_type is Error:  # code that is still being written is not an error
                break
            token_type = token_type.parent
        return self._styles["code"]

    def get_background_style(self) -> RichStyle:
        return self._styles["code"]


class _Code(CodeBlock):
    """A code block in the widget's own styles."""

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True, padding=(0, 1))


class _LeftHeading(Heading):
    LEVEL_ALIGN: ClassVar[Any] = {}


class _Layout(Markdown):
    """Rich's layout, for code in the widget's own styles."""

    elements: ClassVar[Any] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _Code,
        "code_block": _Code,
    }


def _parser() -> MarkdownIt:
    # An entity could encode a character that a terminal obeys. Linkify would take notes.md, a file,
    # for a web address.
    parser = MarkdownIt("gfm-like", {"html": False, "linkify": False}).disable("entity")
    parser.core.ruler.push("breaks", _keep_breaks)
    return parser


def _keep_breaks(state: "StateCore") -> None:
    """Keep the ends of lines: a model ends a line where a poem, an address or a list does."""
    for token in state.tokens:
        for inline in token.children or ():
            if inline.type == "softbreak":
                inline.type = "hardbreak"


def _split(tokens: "Sequence[MarkdownToken]") -> "Iterator[list[MarkdownToken]]":
    """The tokens of each block at the top level."""
    block: list[MarkdownToken] = []
    for token in tokens:
        block.append(token)
        if token.level == 0 and token.nesting <= 0:
            yield block
            block = []


def _styled(strip: Strip, first: int, last: int, style: RichStyle) -> Strip:
    """A strip whose cells from `first` to `last` have one more style."""
    before, inside, after = strip.divide([first, last, strip.cell_length])
    marked = Strip(Segment(text, (own or RichStyle()) + style) for text, own, _ in inside)
    return Strip.join([before, marked, after])


class RenderedBody(Widget):
    """Text laid out as Markdown, selectable with the mouse. Empty until the first `show`."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        f"markdown--{name}" for name in {*_STYLES.values(), *_CODE.values(), "code", "found"}
    }

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        """The text that is laid out."""
        self._source = ""
        self._parser = _parser()
        self._layout_of = _Layout("", hyperlinks=False)
        self._names: dict[str, Any] = {}
        """The addresses that the text gives a name."""
        self._blocks: list[list[MarkdownToken]] = []
        self._begin = 0
        """The first character of the last block, which may still change."""
        self._final = 0
        """The number of blocks before it."""
        self._rows: list[list[Strip]] = []
        """The rows of each block that is laid out at `_width`."""
        self._width = 0
        self._words = ""

    def show(self, text: str) -> None:
        """Lay out a text; of one that has grown, only its end."""
        source = printable(text)
        if not source.startswith(self._source):
            self._names, self._blocks, self._rows = {}, [], []
            self._begin = self._final = 0
        end = source[self._begin :]
        tokens = self._parser.parse(end, self._names)
        del self._blocks[self._final :], self._rows[self._final :]
        new = list(_split(tokens))
        self._blocks += new
        if new and (lines := new[-1][0].map) is not None:
            self._begin += sum(len(line) + 1 for line in end.split("\n")[: lines[0]])
            self._final = len(self._blocks) - 1
        self.text, self._source = text, source
        self._lay_out()
        self.refresh(layout=True)

    def mark(self, words: str) -> None:
        """Highlight words, as far as they are in one row; case does not matter."""
        self._words = words.lower()
        self.refresh()

    def notify_style_update(self) -> None:
        self._rows = []
        super().notify_style_update()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        if width != self._width:
            self._width, self._rows = width, []
        self._lay_out()
        return sum(map(len, self._rows))

    def _lay_out(self) -> None:
        """Lay out the blocks that are not laid out yet, once the width is known."""
        blocks = self._blocks[len(self._rows) :]
        if not (self._width and blocks):
            return
        styles = {
            name: self.get_component_rich_style(f"markdown--{name}", partial=True)
            for name in (name.removeprefix("markdown--") for name in self.COMPONENT_CLASSES)
        }
        self._layout_of.code_theme = _CodeTheme(styles)  # type: ignore[assignment] # as Syntax has it
        console = self.app.console
        options = console.options.update(width=self._width, height=None, highlight=False)
        with console.use_theme(Theme({name: styles[own] for name, own in _STYLES.items()})):
            for block in blocks:
                self._layout_of.parsed = block
                lines = console.render_lines(self._layout_of, options, pad=False)
                rows = [Strip(line).simplify() for line in lines]
                while rows and not rows[-1].text.strip():
                    rows.pop()
                while rows and not rows[0].text.strip():
                    del rows[0]
                self._rows.append([Strip([])] * bool(self._rows and rows) + rows)

    @property
    def _lines(self) -> list[Strip]:
        self._lay_out()  # the styles may have changed
        return [row for rows in self._rows for row in rows]

    def render_line(self, y: int) -> Strip:
        style = self.rich_style
        lines = self._lines
        if y >= len(lines):
            return Strip.blank(self.size.width, style)
        strip = lines[y].apply_style(style)
        selection = self.text_selection
        span = selection.get_span(y) if selection is not None else None
        if span is not None:
            last = strip.cell_length if span[1] == -1 else span[1]
            selected = self.screen.get_component_rich_style("screen--selection")
            strip = _styled(strip, span[0], last, selected)
        start, text = 0, strip.text.lower() if self._words else ""
        while text and (start := text.find(self._words, start)) >= 0:
            first, start = cell_len(text[:start]), start + len(self._words)
            highlight = self.get_component_rich_style("markdown--found", partial=True)
            strip = _styled(strip, first, cell_len(text[:start]), highlight)
        return strip.extend_cell_length(self.size.width, style).apply_offsets(0, y)

    def get_selection(self, selection: Selection) -> tuple[str, str]:
        return selection.extract("\n".join(line.text.rstrip() for line in self._lines)), "\n"
