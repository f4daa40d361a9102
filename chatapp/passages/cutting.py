"""Blocks of a document to passages of a stated size.

Keep: every word of the blocks is in one passage, in order, and no passage is longer than the
size.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chatapp.passages.reading import Block

_SENTENCE_END = re.compile(r"[.!?…][\"'”’)]*\s|\n")


@dataclass(frozen=True, slots=True)
class Piece:
    """A passage of one document. headings: those it stands under. place: they, and where it
    begins."""

    headings: str
    place: str
    text: str


def cut(blocks: Sequence[Block], size: int) -> Iterator[Piece]:
    """Passages of at most `size` characters: whole paragraphs while they fit together, and a
    new one at each heading and row. A longer block is cut after a sentence, else after a word."""
    headings: list[Block] = []
    kept: list[str] = []
    begins = ""
    has_body = False

    def passage() -> Iterator[Piece]:
        if kept:
            path = _path(headings)
            place = f"{path}, {begins}" if path else begins
            yield Piece(path, place, "\n\n".join(kept))
        kept.clear()

    for block in blocks:
        if block.alone or (block.level and has_body):
            yield from passage()
        if block.level:
            headings = [above for above in headings if above.level < block.level] + [block]
        for part, text in enumerate(_parts(block.text, size), 1):
            if sum(map(len, kept)) + 2 * len(kept) + len(text) > size:
                yield from passage()
            if not kept:
                begins = block.place if part == 1 else f"{block.place}, part {part}"
                has_body = False
            kept.append(text)
            has_body = has_body or not block.level
        if block.alone:
            yield from passage()
    yield from passage()


def _path(headings: Sequence[Block]) -> str:
    titles = [" ".join(heading.title.split())[:60] for heading in headings]
    return " › ".join(title for title in titles if title)


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
    # A sentence that ends early would leave a crumb; then a word is good enough.
    end = ends[-1] if ends and ends[-1] > size // 2 else piece.rfind(" ")
    return min(end, size) if end > 0 else size
