"""The blocks of close-ups: neighbours, one weight step by step, norms, neurons, and of what only
some architectures have.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chatapp.common.shading import visible
from chatapp.lab.figures.blocks import (
    Bar,
    Block,
    Cell,
    Heading,
    Lines,
    Map,
    Note,
    Number,
    Pieces,
    Share,
    Table,
)
from chatapp.lab.figures.of_texts import pieces
from chatapp.lab.findings import named_token, state_name

if TYPE_CHECKING:
    from chatapp.lab.architectures.encoder_decoder import CrossAttention
    from chatapp.lab.architectures.experts import Experts
    from chatapp.lab.architectures.positions import Positions
    from chatapp.lab.close_ups import Neighbour, Neighbours, Neurons, Norms, WeightSteps

_SHOWN = 20


def neighbours_blocks(neighbours: "Neighbours") -> list[Block]:
    """A table for each matrix."""
    blocks: list[Block] = [Heading("Neighbours", neighbours.sentence)]
    for title, near in (("embedding", neighbours.embedding), ("output", neighbours.output)):
        if near:
            blocks.append(Table([title, ">cosine", ""], _rows(near)))
    return blocks


def _rows(near: "Sequence[Neighbour]") -> list[list[Cell]]:
    return [[Pieces.of(one.text), Number(one.cosine), Bar(one.cosine, is_dim=True)] for one in near]


def weight_blocks(steps: "WeightSteps") -> list[Block]:
    """The keys with the largest weights, with each step's number, and lines to all."""
    order = sorted(steps.keys, key=lambda key: -key.weight)[:_SHOWN]
    rows: list[list[Cell]] = [
        [
            str(key.position),
            Pieces.of(key.text),
            Number(key.product, ".2f"),
            Number(key.score, ".2f"),
            Share(key.weight),
            Number(key.size, ".3f"),
        ]
        for key in order
    ]
    return [
        Heading("Weight", steps.sentence),
        Table([">#", "key", ">q·k", ">scaled", ">softmax", ">weight·‖v‖"], rows),
        Note(f"The mixed values have the norm {steps.mixed:.3f}."),
        Lines([key.text for key in steps.keys], [key.weight for key in steps.keys]),
    ]


def norms_blocks(norms: "Norms") -> list[Block]:
    """A row a state, with what the block before it added."""
    most = max(norms.stream) or 1.0
    rows: list[list[Cell]] = []
    for index, (norm, other) in enumerate(zip(norms.stream, norms.others, strict=True)):
        added: list[Cell] = ["", ""]
        if index:
            added = [Number(of[index - 1], ".2f") for of in (norms.attention, norms.mlp)]
        mean: Cell = "" if other is None else Number(other, ".2f")
        rows.append([state_name(index), *added, Number(norm, ".2f"), mean, Bar(norm / most)])
    columns = [">layer", ">attention", ">MLP", ">stream", ">others", ""]
    return [Heading("Norms", norms.sentence), Table(columns, rows)]


def neurons_blocks(neurons: "Neurons") -> list[Block]:
    """The neurons, and what each promotes."""
    rows: list[list[Cell]] = [
        [
            neuron.name,
            Number(neuron.activation),
            Number(neuron.effect),
            Pieces.of(*neuron.promotes),
        ]
        for neuron in neurons.neurons
    ]
    columns = ["neuron", ">activation", ">effect", "promotes"]
    return [Heading("Neurons", neurons.sentence), Table(columns, rows)]


def positions_blocks(positions: "Positions") -> list[Block]:
    """How alike positions are, then both texts under each kind of positions."""
    alike = "  ".join(
        f"{distance}: {value:+.2f}" for distance, value in positions.similarity.items()
    )
    blocks: list[Block] = [
        Heading("Positions", positions.sentence),
        Note(f"Similarity by distance  {alike}"),
    ]
    for title, texts in (
        ("after the first text", [row.first for row in positions.rows]),
        ("after the second", [row.second for row in positions.rows]),
    ):
        rows: list[list[Cell]] = [
            [row.positions, Number(row.change, ".3f"), Number(row.apart, ".3f"), pieces(candidates)]
            for row, candidates in zip(positions.rows, texts, strict=True)
        ]
        blocks.append(Table(["positions", ">change", ">apart", title], rows))
    return blocks


def experts_blocks(experts: "Experts") -> list[Block]:
    """The first expert of each token in a map, and all of those of the last token."""
    names = [f"{place} │{text}│" for place, text in enumerate(experts.texts)]
    columns = [str(layer.layer) for layer in experts.layers]
    tokens = range(len(experts.texts))
    weights = [[layer.weights[place][0] for layer in experts.layers] for place in tokens]
    letters = [[str(layer.experts[place][0]) for layer in experts.layers] for place in tokens]
    rows: list[list[Cell]] = [
        [str(layer.layer), Pieces([(str(e), w) for e, w in zip(*chosen, strict=True)])]
        for layer in experts.layers
        for chosen in [(layer.experts[-1], layer.weights[-1])]
    ]
    return [
        Heading("Experts", experts.sentence),
        Note("The number of the expert with the largest weight:"),
        Map(weights, ("token", "layer"), names, columns, letters=letters),
        Heading("All experts", f"of {named_token(experts.texts, len(experts.texts) - 1)}"),
        Table([">layer", "experts and their weights"], rows),
    ]


def cross_attention_blocks(cross: "CrossAttention") -> list[Block]:
    """A map of the prompt's tokens and the reply's, with the reply below it."""
    names = [f"{place} │{text}│" for place, text in enumerate(cross.prompt)]
    first = len(cross.prompt)
    columns = [str(first + place) for place in range(len(cross.reply))]
    reply = "  ".join(f"{first + n} │{visible(text)}│" for n, text in enumerate(cross.reply))
    return [
        Heading("Cross-attention", cross.sentence),
        Map(cross.weights.T.tolist(), ("prompt", "reply"), names, columns),
        Note(f"The reply: {reply}"),
    ]
