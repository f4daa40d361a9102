"""The blocks of what parts of a model do: shares, ablation, patches, circuits, heads."""

from typing import TYPE_CHECKING

from chatapp.lab.experiments import Ablation, Losses, Patches, SmallestCircuit, Why
from chatapp.lab.figures.blocks import Block, Cell, Heading, Map, Note, Number, Pieces, Table

if TYPE_CHECKING:
    from chatapp.lab.heads import HeadScores
    from chatapp.lab.patching import Grid

_SHOWN = 15


def why_blocks(why: Why) -> list[Block]:
    """The largest parts in a table, all heads in a map."""
    rows: list[list[Cell]] = [
        [part.name, Number(part.share), "" if part.effect is None else Number(part.effect)]
        for part in why.order[:_SHOWN]
    ]
    return [
        Heading("Why", why.sentence),
        Table(["part", ">direct", ">total effect"], rows),
        Heading("Layers and heads", "direct share of each head, in logits"),
        Map(why.by_head, is_signed=True),
    ]


def ablation_blocks(ablation: Ablation) -> list[Block]:
    """What changes without parts."""
    rows: list[list[Cell]] = [
        [
            effect.name,
            Number(effect.log_probability, ".3f"),
            Number(effect.change),
            Number(effect.difference_change),
            Number(effect.kl, ".4f"),
        ]
        for effect in ablation.order[: 2 * _SHOWN]
    ]
    columns = ["part", ">log p", ">change", ">of the difference", ">KL"]
    return [Heading("Ablation", ablation.sentence), Table(columns, rows)]


def losses_blocks(losses: Losses) -> list[Block]:
    """How the loss rises without each part."""
    rows: list[list[Cell]] = [
        [name, Number(losses.changes[name], "+.4f")] for name in losses.order[: 2 * _SHOWN]
    ]
    return [Heading("Losses", losses.sentence), Table(["part", ">loss"], rows)]


def patches_blocks(patches: Patches) -> list[Block]:
    """The two prompts aligned, and a map of each kind of patch."""
    pairs = list(zip(patches.question.texts, patches.corrupt_texts, strict=True))
    differing = set(patches.differing)
    rows: list[list[Cell]] = [
        [str(number), Pieces.of(one), Pieces.of(other), "differs" if number in differing else ""]
        for number, (one, other) in enumerate(pairs)
    ]
    blocks: list[Block] = [
        Heading("Patching", patches.sentence),
        Table([">#", "clean", "corrupt", ""], rows),
    ]
    if patches.remark:
        blocks.append(Note(patches.remark))
    for grid in patches.result.grids:
        blocks += _grid_blocks(grid, patches.question.texts)
    return blocks


def _grid_blocks(grid: "Grid", texts: tuple[str, ...]) -> list[Block]:
    """A map of patches: tokens in rows, so that they can be read, or layers."""
    largest = ", ".join(f"{layer}.{place} {value:+.2f}" for layer, place, value in grid.largest(5))
    if grid.kind != "residual":
        title = Heading("Heads, at all tokens", f"largest: {largest}")
        return [title, Map(grid.values, is_signed=True)]
    by_token = [list(column) for column in zip(*grid.values, strict=True)]
    names = [f"{place} │{text}│" for place, text in enumerate(texts)]
    title = Heading("Residual stream before each layer", f"largest, layer.token: {largest}")
    return [title, Map(by_token, ("token", "layer"), rows=names, is_signed=True)]


def circuit_blocks(smallest: SmallestCircuit) -> list[Block]:
    """The parts of the circuit, a line a layer."""
    by_layer: dict[str, list[str]] = {}
    for part in smallest.circuit.parts:
        by_layer.setdefault(part.partition(".")[0], []).append(part)
    rows: list[list[Cell]] = [[layer, "  ".join(parts)] for layer, parts in by_layer.items()]
    return [Heading("Smallest circuit", smallest.sentence), Table([">layer", "parts"], rows)]


def heads_table(scores: "HeadScores", most: int | None = None) -> Table:
    """The heads with the largest scores first, by all measures. most: of them; None for all."""
    from chatapp.lab.heads import MEASURES, NAMED

    values = scores.changes or scores.values
    form = "+.2f" if scores.changes else ".2f"
    measures = list(dict.fromkeys((scores.sorted_by, *NAMED, *MEASURES)))
    rows: list[list[Cell]] = []
    for layer, head in scores.order[:most]:
        numbers = [Number(float(values[name][layer, head]), form) for name in measures]
        rows.append([f"{layer}.{head}", *numbers, scores.called(layer, head)])
    columns = ["head", *(f">{name}" for name in measures), "called"]
    return Table(columns, rows, optional=len(measures) - 1)


def heads_blocks(scores: "HeadScores") -> list[Block]:
    """The heads with the largest scores in a table, and all of them in maps."""
    from chatapp.lab.heads import MEASURES

    by, values = scores.sorted_by, scores.changes or scores.values
    title = MEASURES[by].title
    table = heads_table(scores, _SHOWN + 5)
    blocks: list[Block] = [Heading("Heads", scores.sentence), table]
    if scores.changes:
        blocks.append(Heading("Layers and heads", f"what changed of {title}"))
        return [*blocks, Map(values[by].tolist(), is_signed=True)]
    largest = float(values[by].max())
    scale = max(largest, 1.0)
    of = "percent" if scale == 1 else f"percent of {largest:.1f}"
    layers, heads = scores.shape
    letters = [
        [scores.called(layer, head)[:1].upper() or "·" for head in range(heads)]
        for layer in range(layers)
    ]
    shares = (values[by] / scale).clip(0, 1).tolist()
    return [
        *blocks,
        Heading("Layers and heads", f"{title}, in {of}"),
        Map(shares, scale=scale),
        Heading("Names", "I induction, P previous token, D duplicate token"),
        Map(shares, letters=letters, scale=scale),
    ]
