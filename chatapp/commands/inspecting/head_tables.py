"""Heads of a model as tables: their scores, a map of what they are called, texts of one head."""

from rich.console import Group, RenderableType
from rich.text import Text

from chatapp.commands.inspecting.drawing import (
    draw_table,
    heading,
    heat_map,
    piece_text,
    shaded_text,
)
from chatapp.common.shading import head_name, percent, weight_color
from chatapp.lab.head_texts import HeadTexts
from chatapp.lab.heads import MEASURES, NAMED, HeadScores

_SHOWN = 20
_MOST_COLUMNS = 40


def draw_heads(scores: HeadScores, width: int) -> list[RenderableType]:
    """The heads with the largest scores in a table, and all of them in maps."""
    title = MEASURES[scores.sorted_by].title
    values = scores.changes or scores.values
    form = "{:+.2f}" if scores.changes else "{:.2f}"
    rows: list[list[Text | str]] = []
    measures = _fitting(scores.sorted_by, width)
    for layer, head in scores.order[:_SHOWN]:
        numbers: list[Text | str] = [form.format(values[name][layer, head]) for name in measures]
        rows.append([f"{layer}.{head}", *numbers, scores.called(layer, head)])
    names = ["head", *(f">{name}" for name in measures), "called"]
    table = draw_table(names, rows, width)
    parts: list[RenderableType] = [heading("Heads", scores.sentence), table, Text()]
    if not scores.changes:
        largest = float(values[scores.sorted_by].max())
        scale = max(largest, 1.0)
        cells = (values[scores.sorted_by] / scale).clip(0, 1).tolist()
        of = "percent" if scale == 1 else f"percent of {largest:.1f}"
        parts += [heading("Layers and heads", f"{title}, in {of}"), heat_map(cells, width), Text()]
        parts += [
            heading("Names", "I induction, P previous token, D duplicate token"),
            _names(scores),
        ]
    return parts


def _fitting(first: str, width: int) -> list[str]:
    """As many measures as have room beside a head's name and what it is called."""
    room = width - 18
    fitting = []
    for name in dict.fromkeys((first, *NAMED, *MEASURES)):
        room -= max(len(name), 6) + 2
        if room >= 0:
            fitting.append(name)
    return fitting


def _names(scores: HeadScores) -> RenderableType:
    """A row a layer, a column a head: the first letter of what it is called."""
    layers, heads = scores.shape
    columns = 3 if heads <= _MOST_COLUMNS else 1
    lines = [Text("    " + "".join(head_name(head, columns) for head in range(heads)), "dim")]
    for layer in range(layers):
        marks = [(scores.called(layer, head)[:1].upper() or "·") for head in range(heads)]
        line = Text.assemble(
            (f"{layer:>3} ", "dim"), "".join(f"{mark:>{columns}}" for mark in marks)
        )
        lines.append(line)
    return Group(*lines)


def draw_head_texts(texts: HeadTexts, width: int) -> list[RenderableType]:
    """The texts of one head, each shaded by what its strongest token attends to."""
    parts: list[RenderableType] = [heading("Texts", texts.sentence)]
    for row in texts.rows:
        first = row.links[0].source
        colors = [*map(weight_color, row.weights), *[None] * (len(row.texts) - len(row.weights))]
        links = Text(f"{row.strength:.2f}  ")
        for link in row.links:
            links.append_text(piece_text(row.texts[link.source]))
            links.append(f" {link.source} attends to ", "dim")
            links.append_text(piece_text(row.texts[link.target]))
            links.append(f" {link.target}, {percent(link.weight).strip()}   ", "dim")
        parts += [Text(), shaded_text(row.texts, colors, first), links]
    return parts
