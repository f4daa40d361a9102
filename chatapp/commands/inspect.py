"""`chatapp inspect`: what a model makes of a text, token by token.

The one invariant: the terminal, the exported file and the JSON document show the same
numbers, and text of others is text in all three.
"""

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chatapp.commands.ask import load, standard_input
from chatapp.commands.console import write, write_json
from chatapp.commands.options import JsonOption, ModelOption, sampling_options, settings_of
from chatapp.commands.prompts import interruptible
from chatapp.userfiles import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from chatapp.engine.model import LanguageModel, Sampling
    from chatapp.lab.predictions import Cut, Prediction
    from chatapp.lab.traces import Trace

_MOST_IN_FULL = 128
"""Tokens whose attention is given in full: layers · heads · 128² numbers."""
_EXPORT_WIDTH = 110
_BAR = 12
_LONGEST_TOKEN = 18
_SECTIONS = ("tokens", "next", "attention", "layers")


@sampling_options("temperature", "top_k", "top_p", "min_p")
def inspect(
    context: typer.Context,
    text: Annotated[
        str | None, typer.Argument(help="What to look at. Standard input is appended to it.")
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Show the tokens and how probable each was.")
    ] = False,
    next_token: Annotated[
        bool, typer.Option("--next", help="Show what may come next, before and after the cut.")
    ] = False,
    attention: Annotated[
        bool, typer.Option("--attention", help="Show what a token attends to.")
    ] = False,
    layers: Annotated[
        bool, typer.Option("--layers", help="Show what each layer would predict after a token.")
    ] = False,
    token: Annotated[
        int | None,
        typer.Option(help="Which token, from 0, or from the end: -1. The last if not given."),
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Attention of one layer alone, from 1.")] = None,
    head: Annotated[int | None, typer.Option(help="Attention of one head alone, from 1.")] = None,
    top: Annotated[int, typer.Option(min=1, max=100, help="How many alternatives.")] = 10,
    output: Annotated[
        Path | None, typer.Option(help="Write a self-contained file: .html or .svg.")
    ] = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a model makes of a text: tokens, attention, layers, what comes next.

    Without a choice among --tokens, --next, --attention and --layers it shows all of them.
    """
    settings = settings_of(context)
    given = (text or "") + standard_input()
    if not given:
        raise UserError("there is no text to look at; give it in quotes or on standard input")
    if output is not None and output.suffix.lower() not in (".html", ".svg"):
        raise UserError(f"{output}: is no kind of file to write; expected .html or .svg")
    if output is not None and as_json:
        raise UserError("--output and --json exclude each other")
    wanted = dict(zip(_SECTIONS, (tokens, next_token, attention, layers), strict=True))
    sections = [name for name in _SECTIONS if wanted[name]] or list(_SECTIONS)
    language_model = load(settings.model, "float32", settings.device)
    with interruptible("interrupted"):
        found = _Findings(language_model, given, settings.sampling, token, (layer, head), top)
        if as_json:
            write_json(_document(found, sections, whole=token is None))
        elif output is not None:
            _export(found, sections, output)
        else:
            _show(found, sections)


class _Findings:
    """What there is to show of a text, computed when it is asked for."""

    def __init__(
        self,
        model: "LanguageModel",
        text: str,
        sampling: "Sampling",
        token: int | None,
        chosen: tuple[int | None, int | None],
        top: int,
    ) -> None:
        """token: negative from the end. chosen: layer and head from 1, None for all.

        Raises UserError when there is no such token, layer or head, ModelError when the model
        does not show its inside, ContextOverflow when the text is longer than its window.
        """
        from chatapp.lab.inspecting import inspectable

        opened = inspectable(model)
        if opened is None:
            raise UserError(f"{model.name}: this kind of model does not show its inside")
        self.text = text
        self.model_name = model.name
        self.sampling = sampling
        self.top = top
        self._opened = opened
        self.trace: Trace = opened.inspect(model.tokenizer.encode(text))
        count = len(self.trace.ids)
        place = count - 1 if token is None else token + count * (token < 0)
        if not 0 <= place < count:
            raise UserError(f"--token is {token}; the text has {count} tokens, from 0 on")
        self.token = place
        for name, value, size in zip(
            ("layer", "head"), chosen, (self.trace.layers, self.trace.heads), strict=True
        ):
            if value is not None and not 1 <= value <= size:
                raise UserError(f"--{name} is {value}; the model has {size}, from 1 on")
        self.layer, self.head = chosen

    def predictions(self) -> "list[Prediction]":
        return self.trace.predictions(self.top)

    def next(self) -> "Cut":
        return self._opened.stepper(self.trace.ids, self.sampling).look(self.top)

    def weights(self) -> "list[float]":
        """What the chosen token puts on each token up to itself, averaged over what is not
        chosen of layers and heads."""
        found = self.trace.attention(self.token)
        some = found if self.layer is None else found[self.layer - 1 : self.layer]
        some = some if self.head is None else some[:, self.head - 1 : self.head]
        averages: list[float] = some.mean(axis=(0, 1)).tolist()
        return averages


def _document(found: _Findings, sections: list[str], *, whole: bool) -> dict[str, Any]:
    """Probabilities are those of the plain softmax, entropies in bits."""
    trace = found.trace
    size = len(trace.ids)
    if whole and size > _MOST_IN_FULL and {"attention", "layers"} & set(sections):
        raise UserError(
            f"the text has {size} tokens, and attention and layers are given in full for "
            f"{_MOST_IN_FULL} at most; choose one with --token, or --tokens or --next alone"
        )
    document: dict[str, Any] = {"model": found.model_name, "text": found.text}
    if "tokens" in sections:
        document["tokens"] = _tokens(found)
    if "next" in sections:
        cut = found.next()
        document["next"] = {
            "sampling": asdict(found.sampling),
            "entropy": cut.before.entropy,
            "entropy_after_cut": cut.entropy,
            "kept": cut.kept,
            "candidates": [
                asdict(candidate) | {"drawn": drawn}
                for candidate, drawn in zip(cut.before.candidates, cut.drawn, strict=True)
            ],
        }
    if "attention" in sections:
        weights = trace.attentions() if whole else trace.attention(found.token)
        document["attention"] = weights.tolist()
    if "layers" in sections:
        places = range(size) if whole else [found.token]
        by_token = [trace.lens(place, found.top) for place in places]
        rows = [
            [_guess(guesses[layer]) for guesses in by_token] for layer in range(trace.layers + 1)
        ]
        document["layers"] = rows if whole else [row[0] for row in rows]
    return document


def _tokens(found: _Findings) -> list[dict[str, Any]]:
    """Every token with what was expected in its place; nothing is expected of the first."""
    rows: list[dict[str, Any]] = []
    before: Prediction | None = None
    for id, text, after in zip(
        found.trace.ids, found.trace.texts, found.predictions(), strict=True
    ):
        came = before.actual if before else None
        rows.append(
            {
                "id": id,
                "text": text,
                "probability": came.probability if came else None,
                "rank": came.rank if came else None,
                "entropy": before.entropy if before else None,
                "alternatives": [asdict(each) for each in before.candidates] if before else [],
            }
        )
        before = after
    return rows


def _guess(prediction: "Prediction") -> dict[str, Any]:
    return {
        "entropy": prediction.entropy,
        "alternatives": [asdict(each) for each in prediction.candidates],
    }


def _show(found: _Findings, sections: list[str]) -> None:
    """Print on standard output, in colour where it is a terminal that has them."""
    import io
    import sys

    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    console = Console(file=io.StringIO(), force_terminal=is_terminal, highlight=False)
    _render(console, found, sections)
    # Foreign text was made safe piece by piece; what else there is are Rich's own colours.
    written = console.file.getvalue()  # type: ignore[attr-defined]
    write(written, verbatim=True)


def _export(found: _Findings, sections: list[str], output: Path) -> None:
    import io

    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console
    from rich.terminal_theme import SVG_EXPORT_THEME

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
    _render(console, found, sections)
    if output.suffix.lower() == ".html":
        page = console.export_html(theme=SVG_EXPORT_THEME, inline_styles=True)
    else:
        # Rich's own picture loads its font from the web.
        fontless = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
        page = console.export_svg(title="chatapp inspect", code_format=fontless)
    try:
        output.write_text(page, encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{output}: cannot be written: {reason}") from None


def _render(console: "Console", found: _Findings, sections: list[str]) -> None:
    render = {
        "tokens": _render_tokens,
        "next": _render_next,
        "attention": _render_attention,
        "layers": _render_layers,
    }
    for place, name in enumerate(sections):
        if place:
            console.print()
        for part in render[name](found, console.width):
            console.print(part)


def _title(words: str, note: str = "") -> "Text":
    from rich.text import Text

    return Text.assemble((words, "bold"), ("  " + note if note else "", "dim"))


def _table(columns: "Sequence[str]", rows: "list[list[Text | str]]", width: int) -> "Table":
    """A table without lines. Names that begin with > are of numbers, set to the right. The
    last column gives way where `width` columns of the terminal are too few.
    """
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    left = width
    for place, name in enumerate(columns):
        cells = [name.removeprefix(">"), *(row[place] for row in rows)]
        widest = max(cell_len(str(each)) for each in cells)
        is_last = place == len(columns) - 1
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


def _piece(text: str) -> "Text":
    """A token's text between bars, so that its spaces can be seen."""
    from rich.text import Text

    from chatapp.shading import visible

    shown = Text(visible(text))
    shown.truncate(_LONGEST_TOKEN, overflow="ellipsis")
    return Text.assemble(("│", "dim"), shown, ("│", "dim"))


def _shaded(texts: "tuple[str, ...]", colors: list[Any], marked: int | None = None) -> "Text":
    """Running text, each token on its colour; None is no colour."""
    from rich.style import Style
    from rich.text import Text

    from chatapp.foreign import printable
    from chatapp.shading import hexadecimal, ink_on

    line = Text()
    for place, (text, color) in enumerate(zip(texts, colors, strict=True)):
        style = Style(underline=place == marked, bold=place == marked)
        if color is not None:
            style += Style(color=hexadecimal(ink_on(color)), bgcolor=hexadecimal(color))
        line.append(printable(text), style)
    return line


def _render_tokens(found: _Findings, width: int) -> "list[RenderableType]":
    from rich.text import Text

    from chatapp.shading import bar, likelihood_color, percent

    rows = _tokens(found)
    colors = [
        None if row["probability"] is None else likelihood_color(row["probability"]) for row in rows
    ]
    lines: list[list[Text | str]] = []
    for place, row in enumerate(rows):
        measures = ["", "", "", ""]
        if row["probability"] is not None:
            measures = [
                bar(row["probability"], _BAR if width >= 80 else 4),
                percent(row["probability"]),
                f"{row['rank']:,}",
                f"{row['entropy']:.1f}",
            ]
        best = _best(row["alternatives"])
        lines.append([str(place), str(row["id"]), _piece(row["text"]), *measures, best])
    table = _table([">#", ">id", "token", "", ">p", ">rank", ">bits", "expected"], lines, width)
    title = _title(
        f"Tokens: {len(rows):,}", "red was unlikely, green likely; bits of entropy before each"
    )
    return [title, _shaded(found.trace.texts, colors), Text(), table]


def _best(alternatives: list[dict[str, Any]]) -> "Text":
    from rich.text import Text

    from chatapp.shading import percent

    line = Text()
    for each in alternatives:
        line.append_text(_piece(each["text"]))
        line.append(f" {percent(each['probability']).strip()}  ", "dim")
    return line


def _render_next(found: _Findings, width: int) -> "list[RenderableType]":
    from rich.text import Text

    from chatapp.shading import bar, percent

    cut, sampling = found.next(), found.sampling
    size = _BAR if width >= 72 else 4
    rows: list[list[Text | str]] = [
        [
            str(each.rank),
            str(each.id),
            _piece(each.text),
            percent(each.probability),
            Text(bar(each.probability, size), "dim"),
            percent(drawn) if drawn else "cut",
            Text(bar(drawn, size), "green"),
        ]
        for each, drawn in zip(cut.before.candidates, cut.drawn, strict=True)
    ]
    table = _table([">", ">id", "token", ">softmax", "", ">drawn", ""], rows, width)
    note = (
        f"{cut.before.entropy:.2f} bits; {cut.entropy:.2f} after temperature "
        f"{sampling.temperature:g}, top-k {sampling.top_k}, top-p {sampling.top_p:g}, "
        f"min-p {sampling.min_p:g}, which keep {cut.kept:,}"
    )
    return [_title("Next token", note), table]


def _render_attention(found: _Findings, width: int) -> "list[RenderableType]":
    from rich.text import Text

    from chatapp.shading import percent, visible, weight_color

    trace, weights = found.trace, found.weights()
    chosen = f"layer {found.layer}" if found.layer else "all layers"
    chosen += f", head {found.head}" if found.head else ", all heads"
    order = sorted(range(len(weights)), key=lambda place: -weights[place])
    most = Text("mostly on ")
    for place in order[:5]:
        most.append_text(_piece(trace.texts[place]))
        most.append(f" {percent(weights[place]).strip()}  ")
    texts = trace.texts[: found.token + 1]
    # The first token takes what a head has no use for, and would outshine the others.
    brightest = max(weights[1:], default=0.0) or 1.0
    colors = [weight_color(weight / brightest) for weight in weights]
    target = next((place for place in order if place not in (0, found.token)), order[0])
    cells = trace.attention(found.token)[:, :, target].tolist()
    grid = _heat_map(cells, width)
    named = f"of token {found.token}, │{visible(trace.texts[found.token])}│"
    seen = f"each head's weight on token {target}, │{visible(trace.texts[target])}│, in percent"
    return [
        _title("Attention", f"{named}; {chosen}"),
        _shaded(texts, colors, found.token),
        most,
        Text(),
        _title("Layers and heads", seen),
        grid,
    ]


def _heat_map(cells: list[list[float]], width: int) -> "RenderableType":
    """A row a layer, a column a head; in tenths where percents have no room."""
    from rich.console import Group
    from rich.text import Text

    from chatapp.shading import hexadecimal, ink_on, weight_color

    heads = len(cells[0])
    room = 3 if 4 + 3 * heads <= width else 1
    label = "".join(
        f"{head:>{room}}" if room > 1 else str(head % 10) for head in range(1, heads + 1)
    )
    lines = [Text("    " + label, "dim", no_wrap=True)]
    for layer, row in enumerate(cells, start=1):
        line = Text(f"{layer:>3} ", "dim", no_wrap=True)
        for weight in row:
            color = weight_color(weight**0.5)  # most are small
            style = f"{hexadecimal(ink_on(color))} on {hexadecimal(color)}"
            number = min(99, round(100 * weight)) if room > 1 else min(9, int(10 * weight))
            line.append(f"{number:>{room}}", style)
        lines.append(line)
    return Group(*lines)


def _render_layers(found: _Findings, width: int) -> "list[RenderableType]":
    from chatapp.shading import visible

    trace = found.trace
    lens = trace.lens(found.token, found.top)
    came = lens[0].actual
    rows: list[list[Text | str]] = []
    for layer, guess in enumerate(lens):
        rank = [f"{guess.actual.rank:,}"] if guess.actual else []
        best = _best([asdict(each) for each in guess.candidates])
        rows.append([str(layer), f"{guess.entropy:.1f}", *rank, best])
    table = _table([">layer", ">bits", *([">rank"] if came else []), "would predict"], rows, width)
    note = (
        f"what each would predict after token {found.token}, │{visible(trace.texts[found.token])}│"
    )
    if came:
        note += f"; rank of what came, │{visible(came.text)}│"
    return [_title("Layers", note), table]
