"""The text of an HTML page, paragraph by paragraph, in time linear in its length.

Python's own parser searches for the end of an unfinished tag again from each `<`, which takes
seconds for 160 kB of hostile input.

Invariant: only what a reader of the page would see becomes text: no script, style or comment, and
nothing is downloaded.
"""

import html
import re
from collections.abc import Iterator

_UNSEEN = frozenset("script style template noscript svg math head iframe object".split())
_RAW = ("script", "style")
"""Elements whose content is no HTML."""

_INLINE = frozenset(
    "a abbr b bdi bdo cite code data del dfn em font i img input ins kbd label mark q s samp small"
    " span strong sub sup time tt u var wbr".split()
)
_HEADINGS = frozenset(f"h{level}" for level in range(1, 7))

_MARKUP = re.compile(r"<(?:!--|[!?]|/?[a-zA-Z])")
_NAME = re.compile(r"[^\s/>]*")
# A quote opens a value only behind "=". No alternative backtracks, and a quote that is never closed
# is searched once.
_REST = re.compile(r"""(?:[^>=]++|=\s*+(?:"[^"]*+"|'[^']*+')|=)*+>""")

HtmlBlock = tuple[str, str, str, int]
"""The text, place, title and level of a `reading.Block`."""


def html_blocks(text: str) -> list[HtmlBlock]:
    """The paragraphs of a page in order, including headings and list items.

    Broken HTML is read leniently.
    """
    page = _Page()
    for kind, value, line in _pieces(text):
        if kind == "text":
            page.read_text(value, line)
        elif kind == "start":
            page.open_element(value)
        else:
            page.close_element(value)
    page.end_block()
    return page.blocks


def _pieces(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield texts, start tags and end tags as (kind, text or name, line).

    An unfinished construct, such as a comment without its end, hides what follows.
    """
    place, line = 0, 1
    while place < len(text):
        mark = _MARKUP.search(text, place)
        end = mark.start() if mark else len(text)
        if end > place:
            yield "text", _unescaped(text[place:end]), line
        if mark is None:
            return
        kind, name, after = _markup(text, mark)
        if not after:
            return
        if kind:
            yield kind, name, line
        if kind == "start" and name in _RAW:
            close = re.compile(rf"</{name}\b", re.IGNORECASE).search(text, after)
            after = close.start() if close else len(text)
        line += text.count("\n", place, after)
        place = after


def _markup(text: str, mark: re.Match[str]) -> tuple[str, str, int]:
    """A tag's kind and name, both empty for other markup, and its end; 0 if there is none."""
    start = mark.start()
    if mark[0] == "<!--":
        end = text.find("-->", start + 2)  # "<!-->" is an empty one
        return "", "", end + 3 if end >= 0 else 0
    if mark[0] in ("<!", "<?"):
        return "", "", text.find(">", start) + 1
    name = _NAME.match(text, mark.end() - 1)
    assert name is not None  # it may be empty
    rest = _REST.match(text, name.end())
    kind = "end" if mark[0].startswith("</") else "start"
    return kind, name[0].lower(), rest.end() if rest else 0


def _unescaped(text: str) -> str:
    try:
        return html.unescape(text)
    except ValueError:  # a character reference of thousands of digits
        return text


class _Page:
    """The blocks of a page, as far as it was read."""

    def __init__(self) -> None:
        self.blocks: list[HtmlBlock] = []
        self._parts: list[str] = []
        self._line = 1
        self._unseen: list[str] = []
        self._preformatted = 0

    def open_element(self, tag: str) -> None:
        if tag in _UNSEEN and tag not in self._unseen:
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

    def close_element(self, tag: str) -> None:
        if tag in self._unseen:
            del self._unseen[self._unseen.index(tag) :]
        if tag not in _INLINE and tag not in ("td", "th", "br"):
            self.end_block(tag)
        if tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)

    def read_text(self, text: str, line: int) -> None:
        if self._unseen:
            return
        if not self._parts:
            start = len(text) - len(text.lstrip())
            self._line = line + text.count("\n", 0, start)
        self._parts.append(text if self._preformatted else re.sub(r"\s+", " ", text))

    def end_block(self, tag: str = "") -> None:
        """End the current block; it is a heading if that tag ends one."""
        text = "".join(self._parts)
        self._parts.clear()
        if not self._preformatted:
            text = re.sub(r" +", " ", text).strip()
        if text.strip():
            level = int(tag[1]) if tag in _HEADINGS else 0
            self.blocks.append((text, f"line {self._line}", text if level else "", level))
