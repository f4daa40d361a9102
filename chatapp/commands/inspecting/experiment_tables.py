"""Experiments on the parts of a model as tables and maps.

Invariant: a map says by numbers what it says by colours.
"""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from chatapp.commands.inspecting.drawing import draw_table, heading, piece_text
from chatapp.common.shading import hexadecimal, ink_on, signed_color, signed_number
from chatapp.lab.experiments import Ablation, Losses, Patches, SmallestCircuit, Why

_SHOWN = 15


def draw_why(why: Why, width: int) -> list[RenderableType]:
    """The largest parts in a table, all heads in a map."""
    rows: list[list[Text | str]] = []
    for part in why.order[:_SHOWN]:
        effect = "" if part.effect is None else f"{part.effect:+.3f}"
        rows.append([part.name, f"{part.share:+.3f}", effect])
    return [
        heading("Why", why.sentence),
        draw_table(["part", ">direct", ">total effect"], rows, width),
        Text(),
        heading("Layers and heads", "direct share of each head, in logits"),
        signed_map(why.by_head, width),
    ]


def draw_ablation(ablation: Ablation, width: int) -> list[RenderableType]:
    """What changes without parts."""
    rows: list[list[Text | str]] = [
        [
            effect.name,
            f"{effect.log_probability:.3f}",
            f"{effect.change:+.3f}",
            f"{effect.difference_change:+.3f}",
            f"{effect.kl:.4f}",
        ]
        for effect in ablation.order[: 2 * _SHOWN]
    ]
    columns = ["part", ">log p", ">change", ">of the difference", ">KL"]
    return [heading("Ablation", ablation.sentence), draw_table(columns, rows, width)]


def draw_losses(losses: Losses, width: int) -> list[RenderableType]:
    """How the loss rises without each part."""
    rows: list[list[Text | str]] = [
        [name, f"{losses.changes[name]:+.4f}"] for name in losses.order[: 2 * _SHOWN]
    ]
    return [heading("Losses", losses.sentence), draw_table(["part", ">loss"], rows, width)]


def draw_patches(patches: Patches, width: int) -> list[RenderableType]:
    """The two prompts aligned, and a map of each kind of patch."""
    pairs = zip(patches.question.texts, patches.corrupt_texts, strict=True)
    differing = set(patches.differing)
    rows: list[list[Text | str]] = [
        [str(number), piece_text(one), piece_text(other), "differs" if number in differing else ""]
        for number, (one, other) in enumerate(pairs)
    ]
    parts: list[RenderableType] = [
        heading("Patching", patches.sentence),
        draw_table([">#", "clean", "corrupt", ""], rows, width),
    ]
    if patches.remark:
        parts.append(Text(patches.remark, "dim"))
    for grid in patches.result.grids:
        is_stream = grid.kind == "residual"
        column = "token" if is_stream else "head"
        largest = ", ".join(
            f"{layer}.{place} {value:+.2f}" for layer, place, value in grid.largest(5)
        )
        title = "Residual stream before each layer" if is_stream else "Heads, at all tokens"
        note = f"a row a layer, a column a {column}; largest: {largest}"
        parts += [Text(), heading(title, note), signed_map(grid.values, width)]
    return parts


def draw_circuit(smallest: SmallestCircuit, width: int) -> list[RenderableType]:
    """The parts of the circuit, a line a layer."""
    by_layer: dict[str, list[str]] = {}
    for part in smallest.circuit.parts:
        by_layer.setdefault(part.partition(".")[0], []).append(part)
    rows: list[list[Text | str]] = [[layer, "  ".join(parts)] for layer, parts in by_layer.items()]
    return [
        heading("Smallest circuit", smallest.sentence),
        draw_table([">layer", "parts"], rows, width),
    ]


def signed_map(values: Sequence[Sequence[float]], width: int) -> RenderableType:
    """A row a layer; values themselves where they have room, else tenths of the largest."""
    count = len(values[0])
    columns = next((room for room in (6, 4, 1) if 4 + room * count <= width), 1)
    largest = max((abs(value) for row in values for value in row), default=0.0)
    names = (f"{n:>{columns}}" if columns > 1 else str(n % 10) for n in range(count))
    lines = [Text("    " + "".join(names), "dim", no_wrap=True)]
    for layer, row in enumerate(values):
        line = Text(f"{layer:>3} ", "dim", no_wrap=True)
        for value in row:
            color = signed_color(value / largest if largest else 0.0)
            style = f"{hexadecimal(ink_on(color))} on {hexadecimal(color)}"
            line.append(signed_number(value, largest, columns), style)
        lines.append(line)
    if columns < 6:
        words = "in tenths of the largest"
        letters = "; a to j are -1 to -10 tenths" if columns == 1 else ""
        lines.append(Text(f"{words}, {largest:.2f}{letters}", "dim"))
    return Group(*lines)
