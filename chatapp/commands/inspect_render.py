"""`chatapp inspect` for eyes: the findings as coloured tables of Rich.

Keep: text of others becomes `Text` through `printable` or `visible`, never markup.
"""

import io
import re
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from chatapp.common.foreign import printable
from chatapp.common.shading import (
    bar,
    hexadecimal,
    ink_on,
    likelihood_color,
    percent,
    visible,
    weight_color,
)
from chatapp.lab.findings import Findings, alternatives

_EXPORT_WIDTH = 110
_BAR = 12
_LONGEST_TOKEN = 18


def printed(findings: Findings, sections: list[str], *, in_color: bool) -> str:
    """What a terminal is given for these sections of SECTIONS, as wide as it is.

    in_color: with the colours that the terminal has.
    """
    file = io.StringIO()
    _render(Console(file=file, force_terminal=in_color, highlight=False), findings, sections)
    return file.getvalue()


def html_page(findings: Findings, sections: list[str]) -> str:
    """The sections as a page that needs no other file."""
    return _recorded(findings, sections).export_html(theme=SVG_EXPORT_THEME, inline_styles=True)


def svg_picture(findings: Findings, sections: list[str]) -> str:
    """The sections as a picture that needs no other file."""
    picture = _recorded(findings, sections).export_svg(title="chatapp inspect")
    # Rich loads its font from the web. What stands behind the style sheet may be a user's text.
    style, end, drawing = picture.partition("</style>")
    return re.sub(r"@font-face \{.*?\}", "", style, flags=re.DOTALL) + end + drawing


def _recorded(findings: Findings, sections: list[str]) -> Console:
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
    _render(console, findings, sections)
    return console


def _render(console: Console, findings: Findings, sections: list[str]) -> None:
    renderers = {
        "tokens": _render_tokens,
        "next": _render_next,
        "attention": _render_attention,
        "layers": _render_layers,
    }
    for number, name in enumerate(sections):
        if number:
            console.print()
        for part in renderers[name](findings, console.width):
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


def _shaded(texts: tuple[str, ...], colors: list[Any], marked: int | None = None) -> Text:
    """Running text, each token on its colour; None is no colour."""
    line = Text()
    for position, (text, color) in enumerate(zip(texts, colors, strict=True)):
        style = Style(underline=position == marked, bold=position == marked)
        if color is not None:
            style += Style(color=hexadecimal(ink_on(color)), bgcolor=hexadecimal(color))
        line.append(printable(text), style)
    return line


def _render_tokens(findings: Findings, width: int) -> list[RenderableType]:
    rows = findings.tokens()
    colors = [
        None if row["probability"] is None else likelihood_color(row["probability"]) for row in rows
    ]
    lines: list[list[Text | str]] = []
    for position, row in enumerate(rows):
        measures = ["", "", "", ""]
        if row["probability"] is not None:
            measures = [
                bar(row["probability"], _BAR if width >= 80 else 4),
                percent(row["probability"]),
                f"{row['rank']:,}",
                f"{row['entropy']:.1f}",
            ]
        best = _best(row["alternatives"])
        lines.append([str(position), str(row["id"]), _piece(row["text"]), *measures, best])
    table = _table([">#", ">id", "token", "", ">p", ">rank", ">bits", "expected"], lines, width)
    title = _title(
        f"Tokens: {len(rows):,}", "red was unlikely, green likely; bits of entropy before each"
    )
    return [title, _shaded(findings.trace.texts, colors), Text(), table]


def _best(candidates: list[dict[str, Any]]) -> Text:
    line = Text()
    for candidate in candidates:
        line.append_text(_piece(candidate["text"]))
        line.append(f" {percent(candidate['probability']).strip()}  ", "dim")
    return line


def _render_next(findings: Findings, width: int) -> list[RenderableType]:
    cut, sampling = findings.next(), findings.sampling
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
    note = (
        f"{cut.before.entropy:.2f} bits; {cut.entropy:.2f} after temperature "
        f"{sampling.temperature:g}, top-k {sampling.top_k}, top-p {sampling.top_p:g}, "
        f"min-p {sampling.min_p:g}, which keep {cut.kept:,}"
    )
    return [_title("Next token", note), table]


def _render_attention(findings: Findings, width: int) -> list[RenderableType]:
    trace, weights = findings.trace, findings.weights()
    chosen = f"layer {findings.layer}" if findings.layer else "all layers"
    chosen += f", head {findings.head}" if findings.head else ", all heads"
    order = sorted(range(len(weights)), key=lambda position: -weights[position])
    most = Text("mostly on ")
    for position in order[:5]:
        most.append_text(_piece(trace.texts[position]))
        most.append(f" {percent(weights[position]).strip()}  ")
    texts = trace.texts[: findings.token + 1]
    # The first token takes what a head has no use for, and would outshine the others.
    brightest = max(weights[1:], default=0.0) or 1.0
    colors = [weight_color(weight / brightest) for weight in weights]
    target = next((position for position in order if position not in (0, findings.token)), order[0])
    cells = trace.attention(findings.token)[:, :, target].tolist()
    grid = _heat_map(cells, width)
    named = f"of token {findings.token}, │{visible(trace.texts[findings.token])}│"
    seen = f"each head's weight on token {target}, │{visible(trace.texts[target])}│, in percent"
    return [
        _title("Attention", f"{named}; {chosen}"),
        _shaded(texts, colors, findings.token),
        most,
        Text(),
        _title("Layers and heads", seen),
        grid,
    ]


def _heat_map(cells: list[list[float]], width: int) -> RenderableType:
    """A row a layer, a column a head; in tenths where percents have no room."""
    heads = len(cells[0])
    columns = 3 if 4 + 3 * heads <= width else 1
    label = "".join(
        f"{head:>{columns}}" if columns > 1 else str(head % 10) for head in range(1, heads + 1)
    )
    lines = [Text("    " + label, "dim", no_wrap=True)]
    for layer, row in enumerate(cells, start=1):
        line = Text(f"{layer:>3} ", "dim", no_wrap=True)
        for weight in row:
            color = weight_color(weight**0.5)  # most are small
            style = f"{hexadecimal(ink_on(color))} on {hexadecimal(color)}"
            number = min(99, round(100 * weight)) if columns > 1 else min(9, int(10 * weight))
            line.append(f"{number:>{columns}}", style)
        lines.append(line)
    return Group(*lines)


def _render_layers(findings: Findings, width: int) -> list[RenderableType]:
    trace = findings.trace
    lens = trace.lens(findings.token, findings.top)
    came = lens[0].actual
    rows: list[list[Text | str]] = []
    for layer, guess in enumerate(lens):
        rank = [f"{guess.actual.rank:,}"] if guess.actual else []
        rows.append([str(layer), f"{guess.entropy:.1f}", *rank, _best(alternatives(guess))])
    table = _table([">layer", ">bits", *([">rank"] if came else []), "would predict"], rows, width)
    after = visible(trace.texts[findings.token])
    note = f"what each would predict after token {findings.token}, │{after}│"
    if came:
        note += f"; rank of what came, │{visible(came.text)}│"
    return [_title("Layers", note), table]
