"""Converts files to blocks of text with their places, and blocks to passages.

The suffix decides the type of a file: .html, .pdf, .csv, .jsonl and Markdown; any other text file,
including source code, is plain text.

Invariant: of an HTML page only what a reader would see becomes text: no script, style or comment,
and nothing is downloaded. It takes time linear in its length: Python's own parser searches for the
end of an unfinished tag again from each `<`, which takes seconds for 160 kB of hostile input.
"""

import csv
import html
import io
import json
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from chatapp.common.foreign import parse_json, printable
from chatapp.common.userfiles import open_regular, reason

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


@dataclass(frozen=True, slots=True)
class TextBlock:
    """A piece of a document that should not be cut.

    place: its beginning, in words: "line 12", "page 3". title: if it is a heading, else "". level:
    of the heading, from 1. alone: a row, which shares its passage with no other block.
    """

    text: str
    place: str
    title: str = ""
    level: int = 0
    alone: bool = False


def html_blocks(text: str) -> list[TextBlock]:
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
        self.blocks: list[TextBlock] = []
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
            title = text if level else ""
            self.blocks.append(TextBlock(text, f"line {self._line}", title, level))


MOST_BYTES = 16 * 2**20
_MOST_CHARACTERS = 8 * MOST_BYTES
"""The characters of all blocks of a file: every row of a table repeats its columns' names."""

_MOST_PDF_CHARACTERS = 16 * 2**20
_LOOKED_AT = 8192
"""Bytes in which a NUL makes a file binary; git has the same rule."""

_MARKDOWN = (".md", ".markdown", ".mdx")
_HTML = (".html", ".htm", ".xhtml")
_PICTURES = (".svg",)
_TABLES = {".csv": ",", ".tsv": "\t"}
_BOMS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


class Unreadable(Exception):
    """Why a file gives no text, in a few words that can be counted."""


def read_bytes(path: Path) -> bytes:
    """The content of a file. Raises Unreadable when it is empty, too large or inaccessible."""
    try:
        with open_regular(path) as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Unreadable(f"cannot be read ({reason(error)})") from None
    if not data:
        raise Unreadable("empty")
    if len(data) > MOST_BYTES:
        raise Unreadable(f"larger than {MOST_BYTES // 2**20} MiB")
    return data


def read_blocks(path: Path, data: bytes) -> list[TextBlock]:
    """The text of a file with the content `data`. Raises Unreadable when there is none."""
    suffix = path.suffix.lower()
    if suffix in _PICTURES:
        raise Unreadable("pictures")
    if suffix == ".pdf":
        blocks = list(_pdf_blocks(data))
    else:
        blocks = list(_bounded(_text_blocks(suffix, _text(data))))
    if not blocks:
        raise Unreadable("without text")
    return blocks


def _text_blocks(suffix: str, text: str) -> Iterator[TextBlock]:
    if suffix in _HTML:
        return iter(html_blocks(text))
    if suffix in _TABLES:
        return _table_rows(text, _TABLES[suffix])
    if suffix in (".jsonl", ".ndjson"):
        return _json_rows(text)
    return _paragraphs(text, markdown=suffix in _MARKDOWN)


def _bounded(blocks: Iterator[TextBlock]) -> Iterator[TextBlock]:
    """Pass the blocks on.

    Raises Unreadable when they are many times larger than their file, as rows can be under long
    column names.
    """
    characters = 0
    for block in blocks:
        characters += len(block.text)
        if characters > _MOST_CHARACTERS:
            raise Unreadable(f"with more than {_MOST_CHARACTERS // 2**20} Mi characters")
        yield block


def _text(data: bytes) -> str:
    encoding = next((name for bom, name in _BOMS.items() if data.startswith(bom)), "utf-8")
    if encoding != "utf-16" and b"\0" in data[:_LOOKED_AT]:
        raise Unreadable("binary")
    try:
        return cleaned(data.decode(encoding))
    except UnicodeDecodeError:
        raise Unreadable("not UTF-8") from None


def cleaned(text: str) -> str:
    """Normalize line ends to newlines and remove what a terminal would obey."""
    return printable(re.sub(r"\r\n?|[\f\v\x85\u2028\u2029]", "\n", text))


def _paragraphs(text: str, *, markdown: bool) -> Iterator[TextBlock]:
    """Text between empty lines; in Markdown also headings, except those in code."""
    lines: list[str] = []
    fence = ""

    def block(before: int) -> Iterator[TextBlock]:
        content = "\n".join(lines)
        if content.strip():
            yield TextBlock(content, f"line {before - len(lines)}")
        lines.clear()

    number = 0
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip()
        mark = re.match(r" {0,3}(```+|~~~+)", line) if markdown else None
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        level, title = _heading(line) if markdown and not fence else (0, "")
        if level:
            yield from block(number)
            yield TextBlock(line.strip(), f"line {number}", title, level)
        elif line or fence:
            lines.append(line)
        else:
            yield from block(number)
    yield from block(number + 1)


def _heading(line: str) -> tuple[int, str]:
    """The level and the title of a line of Markdown; level 0 for one that is not a heading."""
    text = line.lstrip(" ")
    title = text.lstrip("#")
    level = len(text) - len(title)
    if len(line) - len(text) > 3 or not 1 <= level <= 6 or not title[:1].isspace():
        return 0, ""
    return level, title.strip().rstrip(f"#{string.whitespace}")


def _pdf_blocks(data: bytes) -> Iterator[TextBlock]:
    for number, page in enumerate(pdf_pages(data), 1):
        for paragraph in re.split(r"\n\s*\n", cleaned(page)):
            if paragraph.strip():
                yield TextBlock(paragraph.strip("\n"), f"page {number}")


def _table_rows(text: str, delimiter: str) -> Iterator[TextBlock]:
    """Each row below the first as lines of "column: value"."""
    # The module's limit is global and others raise it; the text must not depend on it.
    csv.field_size_limit(2**31 - 1)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        header = [name.strip() for name in next(rows, [])]
        for row in rows:
            others = (f"column {place + 1}" for place in range(len(header), len(row)))
            fields = zip(row, chain(header, others), strict=False)
            lines = [f"{name}: {value.strip()}" for value, name in fields if value.strip()]
            if lines:
                yield TextBlock("\n".join(lines), f"line {rows.line_num}", alone=True)
    except csv.Error:
        raise Unreadable("no table that can be read") from None


def _json_rows(text: str) -> Iterator[TextBlock]:
    """Each line as lines of "key: value", or unchanged when it is not an object."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            fields = ((name, _shown(value)) for name, value in row.items())
            line = cleaned("\n".join(f"{name}: {value}" for name, value in fields if value))
        if line.strip():
            yield TextBlock(line.strip(), f"line {number}", alone=True)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value.strip()
    return "" if value is None else json.dumps(value, ensure_ascii=False)


_SENTENCE_END = re.compile(r"[.!?…][\"'”’)]*\s|\n")


@dataclass(frozen=True, slots=True)
class Piece:
    """A passage of one document. headings: those above it. place: they, and its position."""

    headings: str
    place: str
    text: str


def cut(blocks: Sequence[TextBlock], size: int) -> Iterator[Piece]:
    """Cut blocks into passages of at most `size` characters.

    A passage has whole paragraphs as long as they fit; each heading and each row begins a new one.
    A longer block is cut after a sentence, else after a word.
    """
    headings: list[TextBlock] = []
    texts: list[str] = []
    begins = ""
    has_body = False

    def passage() -> Iterator[Piece]:
        if texts:
            path = _path(headings)
            place = f"{path}, {begins}" if path else begins
            yield Piece(path, place, "\n\n".join(texts))
        texts.clear()

    for block in blocks:
        if block.alone or (block.level and has_body):
            yield from passage()
        if block.level:
            headings = [above for above in headings if above.level < block.level] + [block]
        for part, text in enumerate(_parts(block.text, size), 1):
            if sum(map(len, texts)) + 2 * len(texts) + len(text) > size:
                yield from passage()
            if not texts:
                begins = block.place if part == 1 else f"{block.place}, part {part}"
                has_body = False
            texts.append(text)
            has_body = has_body or not block.level
        if block.alone:
            yield from passage()
    yield from passage()


def _path(headings: Sequence[TextBlock]) -> str:
    titles = [" ".join(heading.title.split())[:60] for heading in headings]
    return " > ".join(title for title in titles if title)


def _parts(text: str, size: int) -> Iterator[str]:
    start = 0
    while start < len(text):
        piece = text[start : start + size + 1]
        end = _end(piece, size) if len(piece) > size else len(piece)
        if piece[:end].strip():
            yield piece[:end].rstrip() if start == 0 else piece[:end].strip()
        start += end


def _end(piece: str, size: int) -> int:
    """Where to cut a text of size + 1 characters."""
    ends = [match.end() for match in _SENTENCE_END.finditer(piece)]
    # An early end of a sentence would give a tiny piece; then cut after a word.
    end = ends[-1] if ends and ends[-1] > size // 2 else piece.rfind(" ")
    return min(end, size) if end > 0 else size


def pdf_pages(data: bytes) -> list[str]:
    """The text of each page by pypdf. Raises Unreadable, and MemoryError.

    A hostile PDF can take all memory or never end, so it is read only in a limited process; see
    reader.py.
    """
    from pypdf import PdfReader

    pages: list[str] = []
    room = _MOST_PDF_CHARACTERS
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise Unreadable("PDFs with a password")
        for page in reader.pages:
            pages.append(page.extract_text()[:room])
            room -= len(pages[-1])
    except (Unreadable, MemoryError):
        raise
    except Exception:  # whatever the library raises on malicious bytes
        raise Unreadable("PDFs that cannot be read") from None
    return pages
