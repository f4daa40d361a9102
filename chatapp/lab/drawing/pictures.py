"""Views as one SVG picture, and as a page of HTML around it, with numbers at the pointer.

Invariant: nothing is cut off and nothing is loaded from elsewhere; every number is in a text or
appears where the pointer is. Foreign text is only ever text. The page has one script, ours; the
browser refuses every other one, and the network.
"""

import base64
import hashlib
import html
import io
import json
import re
import textwrap
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from rich.cells import cell_len, chop_cells
from rich.console import Console, RenderableType

from chatapp.common.shading import hexadecimal, ink_on, percent, signed_number, visible
from chatapp.common.userfiles import write_named
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
    Shaded,
    Share,
    Table,
    layout,
    with_heading,
)

COLUMN, ROW = 8.4, 20.0
"""Pixels of a character."""
_WIDTH = 112
"""Columns of running text."""
_CELL = 76
"""Most columns of a cell; what is longer gets more lines."""
_BAR = 14
_MOST_LINES = 60
_TALLEST = 1200.0
"""Pixels of a notebook's frame, which scrolls from there on."""
_BULGE = 150.0

_HINT = (
    "<p>Numbers appear at the pointer. Click a head to see its lines, and a token to see the "
    "weight of each head on it.</p>"
)


def picture_style() -> str:
    """The style sheet of pictures."""
    return Path(__file__).with_name("picture.css").read_text(encoding="utf-8")


def svg_picture(views: Sequence[Drawable]) -> str:
    """The views below each other, as a file of its own."""
    sheet = Sheet(is_page=False)
    for view in views:
        sheet.draw(with_heading(view))
    return sheet.svg(f"<style>{picture_style()}</style>")


def html_page(views: Sequence[Drawable]) -> str:
    """The views as a page, a section each."""
    folder = Path(__file__).parent
    style = picture_style() + (folder / "page.css").read_text(encoding="utf-8")
    script = (folder / "page.js").read_text(encoding="utf-8")
    sections = []
    for view in views:
        sheet = Sheet(is_page=True)
        sheet.draw(with_heading(view))
        sections.append(f'<section id="{view.name}">{sheet.svg()}</section>')
    hint = _HINT if any(" data-heads=" in section for section in sections) else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>chatapp inspect</title><style>{style}</style></head>\n<body>"
        f'{hint}{"".join(sections)}<div id="tip" hidden></div>'
        f"<script>{script}</script></body></html>\n"
    )


def notebook_frame(views: Sequence[Drawable]) -> str:
    """The page of the views in a frame of a notebook, apart from the notebook's own page: its
    styles, and the script at the pointer, touch nothing else."""
    page = html_page(views)
    heights = [float(height) for height in re.findall(r'<svg [^>]*?height="(\d+)"', page)]
    height = min(_TALLEST, sum(heights) + 24 * len(heights) + 40 + 50 * (_HINT in page))
    return (
        f'<iframe sandbox="allow-scripts" style="width: 100%; height: {height:.0f}px; border: 0" '
        f'srcdoc="{html.escape(page)}"></iframe>'
    )


def rich_html(shown: RenderableType, width: int) -> str:
    """What a terminal of so many columns shows, as HTML."""
    console = Console(file=io.StringIO(), record=True, width=width)
    console.print(shown)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def save_view(views: Sequence[Drawable], folder: Path, name: str) -> list[Path]:
    """Write NAME.html and NAME.svg, or NAME-2 and so on where one of them exists.

    Returns the paths. Raises OSError.
    """
    drawn = {".html": html_page(views), ".svg": svg_picture(views)}
    stems = (f"{name}-{number}" if number > 1 else name for number in count(1))
    free = (stem for stem in stems if not any((folder / (stem + end)).exists() for end in drawn))
    stem = next(free)
    paths = [folder / (stem + end) for end in drawn]
    for path, text in zip(paths, drawn.values(), strict=True):
        write_named(path, text)
    return paths


class Sheet:
    """An SVG that grows downwards. is_page: in a page that has a script of its own."""

    def __init__(self, *, is_page: bool) -> None:
        self._is_page = is_page
        self._elements: list[str] = []
        self._width, self._y = _WIDTH * COLUMN, ROW

    def svg(self, style: str = "") -> str:
        """The picture of all that was drawn."""
        width, height = self._width + 2 * COLUMN, self._y + ROW / 2
        size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" {size}>{style}'
            f'<rect class="paper" width="100%" height="100%"/>{"".join(self._elements)}</svg>\n'
        )

    def draw(self, blocks: Sequence[Block]) -> None:
        """Draw blocks below the rest."""
        for block in blocks:
            if isinstance(block, Heading):
                self._heading(block)
            elif isinstance(block, Note):
                self._words(block.words)
            elif isinstance(block, Shaded):
                self._shaded(block)
            elif isinstance(block, Table):
                self._table(block)
            elif isinstance(block, Map):
                self._map(block)
            else:
                self._lines(block)
            self._y += ROW / 2

    # Elements

    def _text(self, x: float, words: str, kind: str = "", style: str = "") -> None:
        """A line of text from column `x` on, in the present row."""
        if not words:
            return
        length = cell_len(words) * COLUMN
        self._width = max(self._width, x * COLUMN + length)
        self._elements.append(
            f'<text class="{kind}" x="{(x + 1) * COLUMN:.1f}" y="{self._y + 15:.1f}" '
            f'textLength="{length:.1f}"{style}>{escaped(words)}</text>'
        )

    def _box(self, x: float, width: float, kind: str, share: float = 1.0, fill: str = "") -> None:
        """A coloured box over columns of the present row."""
        look = f'fill="{fill}"' if fill else f'class="{kind}" fill-opacity="{share:.3f}"'
        self._elements.append(
            f'<rect {look} x="{(x + 1) * COLUMN:.1f}" y="{self._y:.1f}" '
            f'width="{width * COLUMN:.1f}" height="{ROW - 1:.1f}"/>'
        )

    def _open(self, note: str, data: str = "") -> None:
        """Begin what shows a note where the pointer is on it."""
        shown = f' data-note="{escaped(note)}"' if self._is_page and note else ""
        title = f"<title>{escaped(note)}</title>" if note and not self._is_page else ""
        self._elements.append(f"<g{shown}{data}>{title}")

    def _close(self) -> None:
        self._elements.append("</g>")

    # Blocks

    def _heading(self, heading: Heading) -> None:
        self._text(0, heading.words, "b")
        self._y += ROW
        if heading.note:
            self._words(heading.note)

    def _words(self, words: str) -> None:
        for line in wrapped(words, _WIDTH):
            self._text(0, line, "s")
            self._y += ROW

    def _shaded(self, shaded: Shaded) -> None:
        for row in layout(shaded.texts, _WIDTH):
            for token, x, text in row:
                self._open(shaded.notes[token], f' data-token="{token}"')
                value, color, style = shaded.values[token], shaded.color(token), ""
                if value is not None and color is not None:
                    fill = hexadecimal(color) if shaded.is_likelihood else ""
                    style = f' style="fill:{hexadecimal(ink_on(color))}"' if fill else ""
                    self._box(x, cell_len(text), "w", value, fill)
                kind = "b u" if token == shaded.marked else ""
                self._text(x, text, kind, style)
                self._close()
            self._y += ROW

    def _table(self, table: Table) -> None:
        names = [name.removeprefix(">") for name in table.columns]
        cells = [[_cell_lines(cell) for cell in row] for row in table.rows]
        widths = [
            max([cell_len(name), *(max(map(cell_len, row[number]), default=_BAR) for row in cells)])
            for number, name in enumerate(names)
        ]
        starts = [sum(widths[:number]) + 2 * number for number in range(len(widths))]
        is_right = [name.startswith(">") for name in table.columns]
        for name, x, width, right in zip(names, starts, widths, is_right, strict=True):
            self._text(x + (width - cell_len(name)) * right, name, "s")
        self._y += ROW
        for row, lines_of in zip(table.rows, cells, strict=True):
            top = self._y
            for number, (cell, lines) in enumerate(zip(row, lines_of, strict=True)):
                self._y, x = top, starts[number]
                if isinstance(cell, Number | Share):
                    self._open(f"{names[number]} {cell.value:.6g}" if cell.value else "")
                if isinstance(cell, Bar):
                    share = min(1.0, max(0.0, cell.share))
                    self._box(x, _BAR * share, "d" if cell.is_dim else "w")
                for line in lines:
                    self._text(x + (widths[number] - cell_len(line)) * is_right[number], line)
                    self._y += ROW
                if isinstance(cell, Number | Share):
                    self._close()
            self._y = top + ROW * max((len(lines) for lines in lines_of), default=1)

    def _map(self, grid: Map) -> None:
        rows, columns = grid.row_names, grid.column_names
        margin = max(cell_len(visible(name)) for name in [*rows, grid.axes[0] + " ↓"]) + 1
        room = 3 if grid.letters else max(6, *(cell_len(visible(name)) + 1 for name in columns))
        self._text(margin, f"{grid.axes[1]} →", "s")
        self._y += ROW
        self._text(0, f"{grid.axes[0]} ↓", "s")
        for column, name in enumerate(columns):
            self._text(margin + (column + 1) * room - cell_len(visible(name)) - 1, name, "s")
        self._y += ROW
        for row, values in enumerate(grid.values):
            self._text(margin - 1 - cell_len(visible(rows[row])), rows[row], "s")
            for column, value in enumerate(values):
                place = f"{grid.axes[0]} {rows[row]}, {grid.axes[1]} {columns[column]}"
                data = f' data-cell="{row}.{column}"' if grid.is_of_heads else ""
                self._open(f"{place}: {value * grid.scale:.6g}", data)
                share = value / grid.largest if grid.is_signed and grid.largest else value
                kind = "w" if not grid.is_signed else "p" if value > 0 else "m"
                self._box(margin + column * room, room - 0.2, kind, abs(share) ** 0.5)
                words = (
                    grid.letters[row][column]
                    if grid.letters
                    else f"{signed_number(value, grid.largest, 6):>5}"
                    if grid.is_signed
                    else percent(value).removesuffix("%").rjust(5)
                )
                self._text(margin + (column + 1) * room - cell_len(words) - 0.8, words)
                self._close()
            self._y += ROW

    def _lines(self, lines: Lines) -> None:
        """Tokens below each other, and a curve from the last to each: the wider, the more."""
        shown = lines.shown(_MOST_LINES)
        texts = [f"│{visible(lines.texts[place])}│" for place in shown]
        width = max(map(cell_len, texts)) + 12
        heads = []
        if lines.by_head is not None:
            heads = lines.by_head[:, :, shown].astype(float).round(4).tolist()
        data = f' data-heads="{escaped(json.dumps(heads))}"' if self._is_page and heads else ""
        self._open("", f' class="lines"{data}')
        x, bottom = (width + 2) * COLUMN, self._y + ROW * (len(shown) - 0.5)
        bulge = min(_BULGE, 20 + 6 * len(shown))
        for text, place in zip(texts, shown, strict=True):
            weight = lines.weights[place]
            self._open(f"token {place} {text}: weight {weight:.6g}", f' data-line="{place}"')
            self._text(7 - len(str(place)) - 3, str(place), "s")
            self._text(12 - len(percent(weight)), percent(weight), "n")
            self._text(13, text, "b u" if place == shown[-1] else "")
            y = self._y + ROW / 2
            self._elements.append(
                f'<path class="l" d="M{x:.0f} {bottom:.0f}C{x + bulge:.0f} {bottom:.0f} '
                f'{x + bulge:.0f} {y:.0f} {x:.0f} {y:.0f}" stroke-width="{14 * weight:.2f}" '
                f'stroke-opacity="{min(1.0, 0.35 + weight):.2f}"/>'
            )
            self._close()
            self._y += ROW
        self._width = max(self._width, x + bulge)
        self._close()
        left = len(lines.texts) - len(shown)
        note = "A line's width is the weight, which stands before each token."
        self._words(note + (f" {left} tokens with smaller weights are left out." if left else ""))


def escaped(text: str) -> str:
    """Text for XML and HTML, whose characters a terminal would not obey either."""
    return html.escape(visible(text).replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd"))


def wrapped(words: str, width: int) -> list[str]:
    """Lines of at most so many columns."""
    lines = textwrap.wrap(visible(words), width, break_on_hyphens=False) or [""]
    return [piece for line in lines for piece in chop_cells(line, width) or [""]]


def _cell_lines(cell: Cell) -> list[str]:
    if isinstance(cell, Bar):
        return []
    if isinstance(cell, Number):
        return [cell.words]
    if isinstance(cell, Share):
        return [cell.otherwise if cell.value is None else percent(cell.value)]
    if isinstance(cell, str):
        return wrapped(cell, _CELL)
    lines = [""]
    for text, probability in cell.items:
        number = "" if probability is None else f" {percent(probability).strip()}"
        item = f"│{visible(text)}│{number}"
        if lines[-1] and cell_len(lines[-1]) + 2 + cell_len(item) > _CELL:
            lines.append("")
        lines[-1] += ("  " if lines[-1] else "") + item
    return [piece for line in lines for piece in chop_cells(line, _CELL) or [""]]
