"""The blocks that a view is drawn with, as plain data, and running text in rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from rich.cells import cell_len, chop_cells

from chatapp.common.shading import RGB, likelihood_color, visible, weight_color

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Heading:
    """A title, with a sentence beside it."""

    words: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence of its own."""

    words: str


@dataclass(frozen=True, slots=True)
class Shaded:
    """Running text, each token on its colour.

    values: from 0 to 1; None for a token without a colour. notes: the number behind each colour, in
    words. marked: a position. is_likelihood: in the palette of probabilities, instead of dark to
    bright.
    """

    texts: Sequence[str]
    values: Sequence[float | None]
    notes: Sequence[str]
    marked: int | None = None
    is_likelihood: bool = False

    def color(self, position: int) -> RGB | None:
        """The colour of a token."""
        value = self.values[position]
        if value is None:
            return None
        return likelihood_color(value) if self.is_likelihood else weight_color(value)


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a cell. form: how it is rounded, as `format` has it."""

    value: float
    form: str = "+.3f"

    @property
    def words(self) -> str:
        """Rounded."""
        return format(self.value, self.form)


@dataclass(frozen=True, slots=True)
class Share:
    """A probability in a cell, in percent; None shows `otherwise`."""

    value: float | None
    otherwise: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a cell, from 0 to 1."""

    share: float
    is_dim: bool = False


@dataclass(frozen=True, slots=True)
class Pieces:
    """Tokens in a cell, each with its probability or None."""

    items: Sequence[tuple[str, float | None]]

    @classmethod
    def of(cls, *texts: str) -> "Pieces":
        """Tokens alone."""
        return cls([(text, None) for text in texts])


Cell = str | Number | Share | Bar | Pieces


@dataclass(frozen=True, slots=True)
class Table:
    """A table. columns: names; those that begin with > are of numbers, set to the right.

    optional: how many columns before the last may be left out, the right ones first, where a
    terminal has no room for them.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    optional: int = 0


@dataclass(frozen=True, slots=True)
class Map:
    """Values in rows and columns.

    axes: what rows and columns are. rows, columns: their names. is_signed: whether 0 is in the
    middle; else they are shares from 0 to 1, shown in percent. letters: shown in a cell instead of
    its value; "" for none. scale: what a share of 1 stands for. is_of_heads: whether a cell is a
    head whose lines can be shown.
    """

    values: Sequence[Sequence[float]]
    axes: tuple[str, str] = ("layer", "head")
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    is_signed: bool = False
    letters: Sequence[Sequence[str]] = ()
    scale: float = 1.0
    is_of_heads: bool = False

    @property
    def row_names(self) -> list[str]:
        """Numbers from 0 where there are no names."""
        return list(self.rows) or [str(row) for row in range(len(self.values))]

    @property
    def column_names(self) -> list[str]:
        """Numbers from 0 where there are no names."""
        count = len(self.values[0]) if self.values else 0
        return list(self.columns) or [str(column) for column in range(count)]

    @property
    def largest(self) -> float:
        """The largest absolute value."""
        return max((abs(value) for row in self.values for value in row), default=0.0)


@dataclass(frozen=True, eq=False)
class Lines:
    """Lines from one of some tokens to those that it attends to.

    weights: of each token. by_head: (layers, heads, tokens), what other heads would show. source:
    the token that the lines begin at; None for the last.
    """

    texts: Sequence[str]
    weights: Sequence[float]
    by_head: "NDArray[np.float32] | None" = None
    source: int | None = None

    def shown(self, most: int) -> list[int]:
        """The positions of so many tokens: those with the largest weights, then the source."""
        source = len(self.texts) - 1 if self.source is None else self.source
        others = (place for place in range(len(self.texts)) if place != source)
        order = sorted(others, key=lambda place: -self.weights[place])
        return [*sorted(order[: most - 1]), source]


Block = Heading | Note | Shaded | Table | Map | Lines


class Drawable(Protocol):
    """What can be drawn: a view of `chatapp.lab.view`."""

    name: ClassVar[str]
    title: ClassVar[str]

    @property
    def reading(self) -> str:
        """A sentence beside the title."""
        ...

    def blocks(self) -> Sequence[Block]:
        """What is below them."""
        ...


def with_heading(view: Drawable) -> list[Block]:
    """All blocks of a view, from its title on."""
    return [Heading(view.title, view.reading), *view.blocks()]


NOTHING = "∅"
"""Shown for a token without text."""


class RowPiece(NamedTuple):
    """A part of a row: characters of token number `token`, from column `x` on."""

    token: int
    x: int
    text: str


def layout(texts: Sequence[str], width: int) -> list[list[RowPiece]]:
    """Rows of at most `width` columns. A row ends after a line break, and before a token that would
    not fit; only a token longer than a row is cut.
    """
    rows: list[list[RowPiece]] = [[]]
    x = 0
    for index, text in enumerate(texts):
        for part in (visible(text) or NOTHING).split("⏎"):
            # There was a line break between two parts.
            pieces = chop_cells(part, width) if part else []
            for piece in pieces:
                if x and x + cell_len(piece) > width:
                    rows.append([])
                    x = 0
                rows[-1].append(RowPiece(index, x, piece))
                x += cell_len(piece)
            rows[-1].append(RowPiece(index, x, "⏎"))
            rows.append([])
            x = 0
        # There is none after the last part.
        rows.pop()
        mark = rows[-1].pop()
        x = mark.x
    return rows
