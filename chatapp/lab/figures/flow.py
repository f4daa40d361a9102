"""Tokens as running text in rows of a width."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len, chop_cells

from chatapp.common.shading import visible

NOTHING = "∅"
"""Shown for a token without text."""


class Piece(NamedTuple):
    """A part of a row: characters of token number `token`, from column `x` on."""

    token: int
    x: int
    text: str


def layout(texts: Sequence[str], width: int) -> list[list[Piece]]:
    """Rows of at most `width` columns. A row ends after a line break, and before a token that would
    not fit; only a token longer than a row is cut.
    """
    rows: list[list[Piece]] = [[]]
    x = 0
    for index, text in enumerate(texts):
        for part in (visible(text) or NOTHING).split("⏎"):
            # There was a line break between two parts.
            pieces = chop_cells(part, width) if part else []
            for piece in pieces:
                if x and x + cell_len(piece) > width:
                    rows.append([])
                    x = 0
                rows[-1].append(Piece(index, x, piece))
                x += cell_len(piece)
            rows[-1].append(Piece(index, x, "⏎"))
            rows.append([])
            x = 0
        # There is none after the last part.
        rows.pop()
        mark = rows[-1].pop()
        x = mark.x
    return rows
