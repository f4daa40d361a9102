"""`chatapp inspect` for people: the findings as coloured tables of Rich.

Invariant: foreign text becomes `Text` through `printable` or `visible`, never markup.
"""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from chatapp.commands.inspecting.close_ups import (
    draw_neighbours,
    draw_neurons,
    draw_norms,
    draw_positions,
    draw_weight,
)
from chatapp.commands.inspecting.drawing import (
    draw_table,
    heading,
    heat_map,
    likeliest,
    piece_text,
    shaded_text,
)
from chatapp.commands.inspecting.experiment_tables import (
    draw_ablation,
    draw_circuit,
    draw_losses,
    draw_patches,
    draw_why,
)
from chatapp.commands.inspecting.head_tables import draw_head_texts, draw_heads
from chatapp.commands.inspecting.lenses import SavedLens, draw_divergence, draw_saved_lens
from chatapp.commands.inspecting.prompt_parts import draw_parts
from chatapp.common.shading import RGB, bar, likelihood_color, percent, visible, weight_color
from chatapp.lab.close_ups import Neighbours, Neurons, Norms, StateNeighbours, WeightSteps
from chatapp.lab.divergence import Divergence
from chatapp.lab.experiments import Ablation, Losses, Patches, SmallestCircuit, Why
from chatapp.lab.findings import Attention, Finding, Layers, NextToken, Tokens, state_name
from chatapp.lab.head_texts import HeadTexts
from chatapp.lab.heads import HeadScores
from chatapp.lab.positions import Positions
from chatapp.lab.prompt_parts import PromptParts

_EXPORT_WIDTH = 110
_BAR = 12


def printed(findings: Sequence[Finding], *, in_color: bool) -> str:
    """The terminal output for these findings, as wide as the terminal.

    in_color: with the terminal's colours.
    """
    file = io.StringIO()
    _render(Console(file=file, force_terminal=in_color, highlight=False), findings)
    return file.getvalue()


def html_page(findings: Sequence[Finding]) -> str:
    """The findings as a page without other files."""
    return _recorded(findings).export_html(theme=SVG_EXPORT_THEME, inline_styles=True)


def svg_picture(findings: Sequence[Finding]) -> str:
    """The findings as a picture without other files."""
    picture = _recorded(findings).export_svg(title="chatapp inspect")
    # Rich loads its font from the web. The text after the style sheet may be a user's.
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
            best = likeliest(expected)
        colors.append(likelihood_color(actual.probability) if actual is not None else None)
        rows.append([str(position), str(id), piece_text(text), *measures, best])
    table = draw_table([">#", ">id", "token", "", ">p", ">rank", ">bits", "expected"], rows, width)
    title = heading("Tokens", f"{tokens.sentence}; red was unlikely, green likely")
    return [title, shaded_text(tokens.texts, colors), Text(), table]


def _render_next(next_token: NextToken, width: int) -> list[RenderableType]:
    cut, sampling = next_token.cut, next_token.sampling
    size = _BAR if width >= 72 else 4
    rows: list[list[Text | str]] = [
        [
            str(candidate.rank),
            str(candidate.id),
            piece_text(candidate.text),
            percent(candidate.probability),
            Text(bar(candidate.probability, size), "dim"),
            percent(drawn) if drawn else "cut",
            Text(bar(drawn, size), "green"),
        ]
        for candidate, drawn in zip(cut.before.candidates, cut.drawn, strict=True)
    ]
    table = draw_table([">", ">id", "token", ">softmax", "", ">drawn", ""], rows, width)
    parameters = (
        f"temperature {sampling.temperature:g}, top-k {sampling.top_k}, "
        f"top-p {sampling.top_p:g}, min-p {sampling.min_p:g}"
    )
    return [heading("Next token", f"{next_token.sentence}; {parameters}"), table]


def _render_attention(attention: Attention, width: int) -> list[RenderableType]:
    most = Text("mostly on ")
    for position in attention.order[:5]:
        most.append_text(piece_text(attention.texts[position]))
        most.append(f" {percent(attention.weights[position]).strip()}  ")
    colors = [weight_color(share) for share in attention.shares]
    target = attention.target
    seen = f"each head's weight on token {target} │{visible(attention.texts[target])}│, in percent"
    return [
        heading("Attention", attention.sentence),
        shaded_text(attention.texts, colors, attention.position),
        most,
        Text(),
        heading("Layers and heads", seen),
        heat_map(attention.on(target), width),
    ]


def _render_layers(layers: Layers, width: int) -> list[RenderableType]:
    drawn: list[RenderableType] = [heading("Layers", layers.sentence)]
    ranks = [">rank"] if layers.actual else []
    for lens, guesses in layers.lenses.items():
        rows: list[list[Text | str]] = []
        for index, guess in enumerate(guesses):
            rank = [f"{guess.actual.rank:,}"] if guess.actual else []
            rows.append([state_name(index), f"{guess.entropy:.1f}", *rank, likeliest(guess)])
        drawn.append(draw_table([">layer", ">bits", *ranks, lens], rows, width))
    return drawn


_RENDERERS: dict[type[Finding], Callable[[Any, int], list[RenderableType]]] = {
    Tokens: _render_tokens,
    NextToken: _render_next,
    Attention: _render_attention,
    Layers: _render_layers,
    Divergence: draw_divergence,
    SavedLens: draw_saved_lens,
    Why: draw_why,
    Ablation: draw_ablation,
    Losses: draw_losses,
    Patches: draw_patches,
    SmallestCircuit: draw_circuit,
    HeadScores: draw_heads,
    HeadTexts: draw_head_texts,
    PromptParts: draw_parts,
    Neighbours: draw_neighbours,
    StateNeighbours: draw_neighbours,
    WeightSteps: draw_weight,
    Norms: draw_norms,
    Neurons: draw_neurons,
    Positions: draw_positions,
}
"""The function that draws each finding, with the number of columns."""
