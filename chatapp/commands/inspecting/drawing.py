"""What findings are drawn with on a terminal: titles, tables, tokens, maps of heads.

Invariant: foreign text becomes `Text` through `printable` or `visible`, never markup.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.style import Style
from rich.text import Text

from chatapp.common.foreign import printable
from chatapp.common.shading import (
    RGB,
    cell_color,
    cell_number,
    head_name,
    hexadecimal,
    ink_on,
    percent,
    visible,
)

if TYPE_CHECKING:
    from rich.table import Table

    from chatapp.lab.predictions import Candidate, Prediction

_LONGEST_TOKEN = 18


def heading(words: str, note: str = "") -> Text:
    return Text.assemble((words, "bold"), ("  " + note if note else "", "dim"))


def draw_table(columns: Sequence[str], rows: list[list[Text | str]], width: int) -> "Table":
    """A table without lines. Names that begin with > are of numbers, set to the right. The
    last column gives way where `width` columns of the terminal are too few.
    """
    from rich.table import Table  # help does not wait for it

    table = Table(box=None, pad_edge=False, header_style="dim")
    left = width
    for number, name in enumerate(columns):
        cells = [name.removeprefix(">"), *(row[number] for row in rows)]
        widest = max(cell_len(str(cell)) for cell in cells)
        is_last = number == len(columns) - 1
        table.add_column(
            Text(name.removeprefix(">")),
            justify="right" if name.startswith(">") else "left",
            no_wrap=True,
            width=max(8, min(widest, left)) if is_last else widest,
        )
        left -= widest + 2  # Rich puts two spaces between columns
    for row in rows:
        table.add_row(*row)
    return table


def piece_text(text: str) -> Text:
    """A token's text between bars, so that its spaces can be seen."""
    shown = Text(visible(text))
    shown.truncate(_LONGEST_TOKEN, overflow="ellipsis")
    return Text.assemble(("│", "dim"), shown, ("│", "dim"))


def shaded_text(
    texts: tuple[str, ...], colors: Sequence[RGB | None], marked: int | None = None
) -> Text:
    """Running text, each token on its colour; None is no colour."""
    line = Text()
    for position, (text, color) in enumerate(zip(texts, colors, strict=True)):
        style = Style(underline=position == marked, bold=position == marked)
        if color is not None:
            style += Style(color=hexadecimal(ink_on(color)), bgcolor=hexadecimal(color))
        line.append(printable(text), style)
    return line


def likeliest(prediction: "Prediction") -> Text:
    return candidates_text(prediction.candidates)


def candidates_text(candidates: "Sequence[Candidate]") -> Text:
    """Tokens with their probabilities, in a line."""
    line = Text()
    for candidate in candidates:
        line.append_text(piece_text(candidate.text))
        line.append(f" {percent(candidate.probability).strip()}  ", "dim")
    return line


def heat_map(cells: list[list[float]], width: int) -> RenderableType:
    """A row a layer, a column a head; in tenths where percents have no room."""
    heads = len(cells[0])
    columns = 3 if 4 + 3 * heads <= width else 1
    label = "".join(head_name(head, columns) for head in range(heads))
    lines = [Text("    " + label, "dim", no_wrap=True)]
    for layer, row in enumerate(cells):
        line = Text(f"{layer:>3} ", "dim", no_wrap=True)
        for weight in row:
            color = cell_color(weight)
            style = f"{hexadecimal(ink_on(color))} on {hexadecimal(color)}"
            line.append(cell_number(weight, columns), style)
        lines.append(line)
    return Group(*lines)
