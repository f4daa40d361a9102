"""Files to blocks of text: paragraphs, headings, pages and rows, each with its place.

What a file is, its suffix says: .html, .pdf, .csv, .jsonl and Markdown are read as such, and all
else that holds text as text, source code too.

Keep: a block is printable text, whatever bytes its file holds, and a file that gives none says
why in a few words.
"""

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chatapp.foreign import printable
from chatapp.passages.markup import html_blocks
from chatapp.passages.pdf import PdfError, pdf_pages
from chatapp.userfiles import reason

MOST_BYTES = 16 * 2**20
_LOOKED_AT = 8192
"""Bytes in which a NUL makes a file a binary one, as git has it."""

_MARKDOWN = (".md", ".markdown", ".mdx")
_HTML = (".html", ".htm", ".xhtml")
_PICTURES = (".svg",)
_TABLES = {".csv": ",", ".tsv": "\t"}
_BOMS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


class Unreadable(Exception):
    """Why a file gives no text, in a few words that can be counted."""


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a document that is not cut if it need not be.

    place: where it begins, in words: "line 12", "page 3". title: of the heading that it is, ""
        for others. level: of the heading, from 1. alone: a row, which shares its passage with
        no other.
    """

    text: str
    place: str
    title: str = ""
    level: int = 0
    alone: bool = False


def read_bytes(path: Path) -> bytes:
    """What a file holds. Raises Unreadable when that is nothing, too much or out of reach."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Unreadable(f"cannot be read ({reason(error)})") from None
    if not data:
        raise Unreadable("empty")
    if len(data) > MOST_BYTES:
        raise Unreadable(f"larger than {MOST_BYTES // 2**20} MiB")
    return data


def read_blocks(path: Path, data: bytes) -> list[Block]:
    """The text of a file that holds `data`. Raises Unreadable when there is none."""
    suffix = path.suffix.lower()
    if suffix in _PICTURES:
        raise Unreadable("pictures")
    if suffix == ".pdf":
        blocks = list(_pdf_blocks(data))
    else:
        text = _text(data)
        if suffix in _HTML:
            blocks = [Block(*block) for block in html_blocks(text)]
        elif suffix in _TABLES:
            blocks = list(_table_rows(text, _TABLES[suffix]))
        elif suffix in (".jsonl", ".ndjson"):
            blocks = list(_json_rows(text))
        else:
            blocks = list(_paragraphs(text, markdown=suffix in _MARKDOWN))
    if not blocks:
        raise Unreadable("without text")
    return blocks


def _text(data: bytes) -> str:
    encoding = next((name for bom, name in _BOMS.items() if data.startswith(bom)), "utf-8")
    if encoding != "utf-16" and b"\0" in data[:_LOOKED_AT]:
        raise Unreadable("binary")
    try:
        return cleaned(data.decode(encoding))
    except UnicodeDecodeError:
        raise Unreadable("not UTF-8") from None


def cleaned(text: str) -> str:
    """A text with lines that end in a newline alone, and nothing a terminal would obey."""
    return printable(re.sub(r"\r\n?|[\f\v\x85\u2028\u2029]", "\n", text))


def _paragraphs(text: str, *, markdown: bool) -> Iterator[Block]:
    """What stands between empty lines; in Markdown headings too, but for those in code."""
    lines: list[str] = []
    fence = ""

    def block(before: int) -> Iterator[Block]:
        content = "\n".join(lines)
        if content.strip():
            yield Block(content, f"line {before - len(lines)}")
        lines.clear()

    number = 0
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip()
        mark = re.match(r" {0,3}(```+|~~~+)", line) if markdown else None
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        heading = re.match(r" {0,3}(#{1,6})\s+(.*?)[\s#]*$", line) if markdown else None
        if heading and not fence:
            yield from block(number)
            yield Block(line.strip(), f"line {number}", heading[2], len(heading[1]))
        elif line or fence:
            lines.append(line)
        else:
            yield from block(number)
    yield from block(number + 1)


def _pdf_blocks(data: bytes) -> Iterator[Block]:
    try:
        pages = pdf_pages(data)
    except PdfError as error:
        raise Unreadable(str(error)) from None
    for number, page in enumerate(pages, 1):
        for paragraph in re.split(r"\n\s*\n", cleaned(page)):
            if paragraph.strip():
                yield Block(paragraph.strip("\n"), f"page {number}")


def _table_rows(text: str, delimiter: str) -> Iterator[Block]:
    """Each row below the first as lines of "column: value"."""
    # The module's limit is everybody's: others raise it, and what is read should not hang on them.
    csv.field_size_limit(2**31 - 1)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        header = next(rows, [])
        for row in rows:
            names = [*header, *(f"column {place + 1}" for place in range(len(header), len(row)))]
            fields = zip(names, row, strict=False)
            lines = [f"{name.strip()}: {value.strip()}" for name, value in fields if value.strip()]
            if lines:
                yield Block("\n".join(lines), f"line {rows.line_num}", alone=True)
    except csv.Error:
        raise Unreadable("no table that can be read") from None


def _json_rows(text: str) -> Iterator[Block]:
    """Each line as lines of "key: value"; as it stands when it is no object."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            fields = ((name, _shown(value)) for name, value in row.items())
            line = cleaned("\n".join(f"{name}: {value}" for name, value in fields if value))
        if line.strip():
            yield Block(line.strip(), f"line {number}", alone=True)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value.strip()
    return "" if value is None else json.dumps(value, ensure_ascii=False)
