"""`chatapp inspect` for eyes: the findings as coloured tables of Rich.

Keep: text of others becomes `Text` through `printable` or `visible`, never markup.
"""

import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from chatapp.common.foreign import printable
from chatapp.common.shading import (
    RGB,
    bar,
    cell_color,
    cell_number,
    head_name,
    hexadecimal,
    ink_on,
    likelihood_color,
    percent,
    visible,
    weight_color,
)
from chatapp.lab.findings import Attention, Finding, Layers, NextToken, Tokens

if TYPE_CHECKING:
    from chatapp.lab.predictions import Prediction

_EXPORT_WIDTH = 110
_BAR = 12
_LONGEST_TOKEN = 18


def printed(findings: Sequence[Finding], *, in_color: bool) -> str:
    """What a terminal is given for these findings, as wide as the terminal is.

    in_color: with the colours that the terminal has.
    """
    file = io.StringIO()
    _render(Console(file=file, force_terminal=in_color, highlight=False), findings)
    return file.getvalue()


def html_page(findings: Sequence[Finding]) -> str:
    """The findings as a page that needs no other file."""
    return _recorded(findings).export_html(theme=SVG_EXPORT_THEME, inline_styles=True)


def svg_picture(findings: Sequence[Finding]) -> str:
    """The findings as a picture that needs no other file."""
    picture = _recorded(findings).export_svg(title="chatapp inspect")
    # Rich loads its font from the web. What stands behind the style sheet may be a user's text.
    style, end, drawing = picture.partition("</style>")
    return re.sub(r"@font-face \{.*?\}", "", style, flags=re.DOTALL) + end + drawing


def _recorded(findings: Sequence[Finding]) -> Console:
    console = Console(
        file=io.StringIO(),
        record=True,
        width=_EXPORT_WIDTH,
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        highlight=False,
        legacy_windows=False,
    )
    _render(console, findings)
    return console


def _render(console: Console, findings: Sequence[Finding]) -> None:
    for number, finding in enumerate(findings):
        if number:
            console.print()
        for part in _RENDERERS[type(finding)](finding, console.width):
            console.print(part)


def _title(words: str, note: str = "") -> Text:
    return Text.assemble((words, "bold"), ("  " + note if note else "", "dim"))


def _table(columns: Sequence[str], rows: list[list[Text | str]], width: int) -> Table:
    """A table without lines. Names that begin with > are of numbers, set to the right. The
    last column gives way where `width` columns of the terminal are too few.
    """
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


def _piece(text: str) -> Text:
    """A token's text between bars, so that its spaces can be seen."""
    shown = Text(visible(text))
    shown.truncate(_LONGEST_TOKEN, overflow="ellipsis")
    return Text.assemble(("│", "dim"), shown, ("│", "dim"))


def _shaded(
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


def _render_tokens(tokens: Tokens, width: int) -> list[RenderableType]:
    colors: list[RGB | None] = []
    rows: list[list[Text | str]] = []
    for position, (id, text) in enumerate(zip(tokens.ids, tokens.texts, strict=True)):
        expected, actual = tokens.expected[position], tokens.actual(position)
        measures, best = ["", "", "", ""], Text()
        if expected is not None and actual is not None:
            measures = [
                bar(actual.probability, _BAR if width >= 80 else 4),
                percent(actual.probability),
                f"{actual.rank:,}",
                f"{expected.entropy:.1f}",
            ]
            best = _best(expected)
        colors.append(likelihood_color(actual.probability) if actual is not None else None)
        rows.append([str(position), str(id), _piece(text), *measures, best])
    table = _table([">#", ">id", "token", "", ">p", ">rank", ">bits", "expected"], rows, width)
    title = _title("Tokens", f"{tokens.sentence}; red was unlikely, green likely")
    return [title, _shaded(tokens.texts, colors), Text(), table]


def _best(prediction: "Prediction") -> Text:
    line = Text()
    for candidate in prediction.candidates:
        line.append_text(_piece(candidate.text))
        line.append(f" {percent(candidate.probability).strip()}  ", "dim")
    return line


def _render_next(next_token: NextToken, width: int) -> list[RenderableType]:
    cut, sampling = next_token.cut, next_token.sampling
    size = _BAR if width >= 72 else 4
    rows: list[list[Text | str]] = [
        [
            str(candidate.rank),
            str(candidate.id),
            _piece(candidate.text),
            percent(candidate.probability),
            Text(bar(candidate.probability, size), "dim"),
            percent(drawn) if drawn else "cut",
            Text(bar(drawn, size), "green"),
        ]
        for candidate, drawn in zip(cut.before.candidates, cut.drawn, strict=True)
    ]
    table = _table([">", ">id", "token", ">softmax", "", ">drawn", ""], rows, width)
    parameters = (
        f"temperature {sampling.temperature:g}, top-k {sampling.top_k}, "
        f"top-p {sampling.top_p:g}, min-p {sampling.min_p:g}"
    )
    return [_title("Next token", f"{next_token.sentence}; {parameters}"), table]


def _render_attention(attention: Attention, width: int) -> list[RenderableType]:
    most = Text("mostly on ")
    for position in attention.order[:5]:
        most.append_text(_piece(attention.texts[position]))
        most.append(f" {percent(attention.weights[position]).strip()}  ")
    colors = [weight_color(share) for share in attention.shares]
    target = attention.target
    seen = f"each head's weight on token {target} │{visible(attention.texts[target])}│, in percent"
    return [
        _title("Attention", attention.sentence),
        _shaded(attention.texts, colors, attention.position),
        most,
        Text(),
        _title("Layers and heads", seen),
        _heat_map(attention.on(target), width),
    ]


def _heat_map(cells: list[list[float]], width: int) -> RenderableType:
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


def _render_layers(layers: Layers, width: int) -> list[RenderableType]:
    rows: list[list[Text | str]] = []
    for layer, guess in enumerate(layers.predictions):
        rank = [f"{guess.actual.rank:,}"] if guess.actual else []
        rows.append([str(layer), f"{guess.entropy:.1f}", *rank, _best(guess)])
    ranks = [">rank"] if layers.actual else []
    table = _table([">layer", ">bits", *ranks, "would predict"], rows, width)
    return [_title("Layers", layers.sentence), table]


_RENDERERS: dict[type[Finding], Callable[[Any, int], list[RenderableType]]] = {
    Tokens: _render_tokens,
    NextToken: _render_next,
    Attention: _render_attention,
    Layers: _render_layers,
}
"""What draws each finding, in so many columns."""
