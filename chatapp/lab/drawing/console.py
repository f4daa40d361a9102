"""Views as coloured text of a terminal."""

import io
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text

from chatapp.common.foreign import printable
from chatapp.common.shading import (
    bar,
    cell_color,
    cell_number,
    hexadecimal,
    ink_on,
    percent,
    signed_color,
    signed_number,
    visible,
)
from chatapp.lab.drawing.blocks import (
    Bar,
    Block,
    Cell,
    Drawable,
    Heading,
    Lines,
    Map,
    Note,
    Number,
    Pieces,
    Shaded,
    Share,
    Table,
    with_heading,
)

_LONGEST_TOKEN = 18
_BAR, _SHORT_BAR = 12, 4
_MOST_LINES = 24
_STROKES = ((0.5, "█"), (0.2, "━"), (0.05, "─"), (0.005, "╌"))
"""From which weight on a line between tokens looks so."""


def printed(views: Sequence[Drawable], *, in_color: bool) -> str:
    """The terminal output for these views, as wide as the terminal.

    in_color: with the terminal's colours.
    """
    file = io.StringIO()
    console = Console(file=file, force_terminal=in_color, highlight=False)
    for part in drawn(views, console.width):
        console.print(part)
    return file.getvalue()


def drawn(views: Sequence[Drawable], width: int) -> Iterator[RenderableType]:
    """What these views look like in so many columns, from above."""
    for number, view in enumerate(views):
        if number:
            yield Text()
        yield from drawn_blocks(with_heading(view), width)


def drawn_blocks(blocks: Sequence[Block], width: int) -> Iterator[RenderableType]:
    """What blocks look like in so many columns, from above."""
    last: Block | None = None
    for block in blocks:
        if isinstance(last, Shaded | Table | Map | Lines) and not isinstance(block, Note):
            yield Text()
        if isinstance(block, Heading):
            yield heading(block.words, block.note)
        elif isinstance(block, Note):
            yield Text(printable(block.words), "dim")
        elif isinstance(block, Shaded):
            yield _shaded(block)
        elif isinstance(block, Table):
            yield _table(block, width)
        elif isinstance(block, Map):
            yield from _map(block, width)
        else:
            yield from line_rows(block)
        last = block


def heading(words: str, note: str = "") -> Text:
    """A title, with a sentence beside it."""
    return Text.assemble((words, "bold"), ("  " + printable(note) if note else "", "dim"))


def _shaded(shaded: Shaded) -> Text:
    line = Text()
    for position, text in enumerate(shaded.texts):
        is_marked, color = position == shaded.marked, shaded.color(position)
        style = Style(underline=is_marked, bold=is_marked)
        if color is not None:
            style += Style(color=hexadecimal(ink_on(color)), bgcolor=hexadecimal(color))
        line.append(printable(text), style)
    return line


def _table(table: Table, width: int) -> RichTable:
    """A table without lines. The last column gives way where `width` columns are too few."""
    size = _BAR if width >= 80 else _SHORT_BAR
    names = [name.removeprefix(">") for name in table.columns]
    rows = [[_cell(cell, size) for cell in row] for row in table.rows]
    widths = [
        max([cell_len(name), *(cell_len(row[number].plain) for row in rows)])
        for number, name in enumerate(names)
    ]
    left_out = 0
    chosen = list(range(len(names)))
    while left_out < table.optional and sum(widths[n] + 2 for n in chosen) > width + 2:
        del chosen[-2]
        left_out += 1
    drawn_table = RichTable(box=None, pad_edge=False, header_style="dim")
    left = width
    for number in chosen:
        is_last = number == chosen[-1]
        drawn_table.add_column(
            Text(names[number]),
            justify="right" if table.columns[number].startswith(">") else "left",
            no_wrap=True,
            width=max(8, min(widths[number], left)) if is_last else widths[number],
        )
        left -= widths[number] + 2  # Rich puts two spaces between columns
    for cells, row in zip(table.rows, rows, strict=True):
        last = cells[chosen[-1]]
        if isinstance(last, Pieces):
            row[chosen[-1]] = _pieces(last, max(8, left + widths[chosen[-1]] + 2))
        drawn_table.add_row(*(row[number] for number in chosen))
    return drawn_table


def _cell(cell: Cell, size: int) -> Text:
    if isinstance(cell, Number):
        return Text(cell.words)
    if isinstance(cell, Share):
        return Text(cell.otherwise if cell.value is None else percent(cell.value))
    if isinstance(cell, Bar):
        return Text(bar(cell.share, size), "dim" if cell.is_dim else "green")
    if isinstance(cell, Pieces):
        return _pieces(cell)
    return Text(visible(cell))


def _pieces(pieces: Pieces, width: int | None = None) -> Text:
    """As many tokens as have room, but one."""
    line = Text()
    for text, probability in pieces.items:
        item = piece_text(text)
        if probability is not None:
            item.append(f" {percent(probability).strip()}", "dim")
        space = "  " if probability is not None else " "
        if line and width is not None and line.cell_len + len(space) + item.cell_len > width:
            break
        line.append(space * bool(line)).append_text(item)
    return line


def piece_text(text: str) -> Text:
    """A token's text between bars, so that its spaces can be seen."""
    shown = Text(visible(text))
    shown.truncate(_LONGEST_TOKEN, overflow="ellipsis")
    return Text.assemble(("│", "dim"), shown, ("│", "dim"))


def _map(grid: Map, width: int) -> Iterator[Text]:
    """Rows and columns of numbers: the values where they have room, else tenths."""
    names = [
        piece_text(name.replace("│", "")) if grid.rows else Text(name) for name in grid.row_names
    ]
    names = names or [Text()]
    margin = max(cell_len(grid.axes[0]) + 2, *(cell_len(name.plain) for name in names)) + 1
    count = len(grid.column_names)
    sizes = (3, 1) if not grid.is_signed else (6, 4, 1)
    room = next((size for size in sizes if margin + size * count <= width), 1)
    head = "".join(f"{name:>{room}}" if room > 1 else name[-1] for name in grid.column_names)
    yield Text(f"{'':{margin}}{' ' * (room - 1)}{grid.axes[1]} →", "dim")
    yield Text(f"{grid.axes[0] + ' ↓':<{margin}}{head}", "dim", no_wrap=True)
    for row, (name, values) in enumerate(zip(names, grid.values, strict=True)):
        line = Text(" " * (margin - 1 - cell_len(name.plain)), no_wrap=True)
        line.append_text(name).append(" ")
        line.stylize("dim")
        for column, value in enumerate(values):
            if grid.letters:
                line.append(f"{grid.letters[row][column]:>{room}}")
                continue
            share = value / grid.largest if grid.is_signed and grid.largest else value
            color = signed_color(share) if grid.is_signed else cell_color(value)
            words = (
                signed_number(value, grid.largest, room)
                if grid.is_signed
                else cell_number(value, room)
            )
            line.append(words, f"{hexadecimal(ink_on(color))} on {hexadecimal(color)}")
        yield line
    if room < sizes[0] and not grid.letters:
        of = " of the largest" if grid.is_signed else ""
        below = "; a to j are tenths below 0" if grid.is_signed and room == 1 else ""
        yield Text(f"digits are tenths{of}{below}", "dim")


def line_rows(lines: Lines, most: int = _MOST_LINES) -> Iterator[Text]:
    """Tokens below each other, and a line from the last to each: the heavier, the more weight."""
    shown = lines.shown(most)
    pieces = [piece_text(lines.texts[place]) for place in shown]
    size = max(cell_len(piece.plain) for piece in pieces) + 1
    weights = [lines.weights[place] for place in shown]
    first = next((n for n, weight in enumerate(weights) if _stroke(weight)), len(shown) - 1)
    for number, (place, piece, weight) in enumerate(zip(shown, pieces, weights, strict=True)):
        is_source = number == len(shown) - 1
        line = Text(no_wrap=True).append(f"{place:>4} ", "dim")
        line.append_text(piece).append(" " * (size - cell_len(piece.plain)))
        stroke = _stroke(weight)
        corner = "╯" if is_source else "╮" if number == first else "┤" if stroke else "│"
        trunk = corner if number >= first else " "
        arrow = "◀" if stroke and not is_source else "●" if is_source else " "
        line.append(
            arrow + (stroke or (" " if not is_source else "─")) * 5, "bold" if weight > 0.2 else ""
        )
        line.append(f"{trunk} {percent(weight)}")
        yield line
    words = "█ from 50 %, ━ from 20 %, ─ from 5 %, ╌ from 0.5 %"
    if len(shown) < len(lines.texts):
        words += f"; {len(lines.texts) - len(shown)} tokens with less are left out"
    yield Text(words, "dim")


def _stroke(weight: float) -> str:
    return next((stroke for least, stroke in _STROKES if weight >= least), "")
