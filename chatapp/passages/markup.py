"""The text of an HTML page, paragraph by paragraph.

Keep: nothing a reader of the page would not see becomes text: no script, style or comment, and
nothing is fetched.
"""

import re
from html.parser import HTMLParser

_UNSEEN = frozenset("script style template noscript svg math head iframe object".split())
_INLINE = frozenset(
    "a abbr b bdi bdo cite code data del dfn em font i img input ins kbd label mark q s samp small"
    " span strong sub sup time tt u var wbr".split()
)
_HEADINGS = frozenset(f"h{level}" for level in range(1, 7))

HtmlBlock = tuple[str, str, str, int]
"""The text, place, title and level of a `reading.Block`."""


def html_blocks(text: str) -> list[HtmlBlock]:
    """The paragraphs of a page, its headings and list items among them, in their order.

    A page of broken HTML gives what a lenient reader makes of it.
    """
    page = _Page()
    page.feed(text)
    page.close()
    page.end_block()
    return page.blocks


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[HtmlBlock] = []
        self._parts: list[str] = []
        self._line = 1
        self._unseen: list[str] = []
        self._preformatted = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _UNSEEN:
            self._unseen.append(tag)
        elif tag == "body":  # ends a head that nobody closed
            self._unseen.clear()
        if tag == "br":
            self._parts.append("\n" if self._preformatted else " ")
        elif tag in ("td", "th"):
            self._parts.append(" ")
        elif tag not in _INLINE:
            self.end_block()
        self._preformatted += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if tag in self._unseen:
            del self._unseen[self._unseen.index(tag) :]
        if tag not in _INLINE and tag not in ("td", "th", "br"):
            self.end_block(tag)
        if tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)

    def handle_data(self, data: str) -> None:
        if self._unseen:
            return
        if not self._parts:
            start = len(data) - len(data.lstrip())
            self._line = self.getpos()[0] + data.count("\n", 0, start)
        self._parts.append(data if self._preformatted else re.sub(r"\s+", " ", data))

    def end_block(self, tag: str = "") -> None:
        """Let what was read since the last block be one; a heading if that tag ends it."""
        text = "".join(self._parts)
        self._parts.clear()
        if not self._preformatted:
            text = re.sub(r" +", " ", text).strip()
        if text.strip():
            level = int(tag[1]) if tag in _HEADINGS else 0
            self.blocks.append((text, f"line {self._line}", text if level else "", level))
