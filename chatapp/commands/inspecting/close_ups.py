"""`chatapp inspect --neighbours, --state, --weight, --norms, --neurons, --positions`: close-ups.

Invariant: nothing of torch is imported before a model is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from chatapp.commands.inspecting.drawing import candidates_text, draw_table, heading, piece_text
from chatapp.common.shading import bar, percent
from chatapp.lab.findings import Finding, state_name

if TYPE_CHECKING:
    from chatapp.engine.model import LanguageModel
    from chatapp.lab.close_ups import Neighbour, Neighbours, Neurons, Norms, WeightSteps
    from chatapp.lab.positions import Positions

_SHOWN = 20
_BAR = 12


@dataclass(frozen=True, slots=True)
class CloseUps:
    """What the options of `inspect` say; None or False where not given.

    neighbours: a token. state: `embed` or a layer. weight: a head. neurons: an MLP. positions:
    another text.
    """

    neighbours: str | None = None
    state: str | None = None
    weight: str | None = None
    norms: bool = False
    neurons: str | None = None
    positions: str | None = None

    @property
    def are_given(self) -> bool:
        """Whether there is one of them."""
        options = (self.neighbours, self.state, self.weight, self.neurons, self.positions)
        return self.norms or any(option is not None for option in options)


def find_close_ups(
    model: "LanguageModel", ids: Sequence[int], position: int, wanted: CloseUps, top: int
) -> list[Finding]:
    """The close-ups, in the order of the options. Raises UserError.

    ids: of the text up to the token at `position`.
    """
    from chatapp.engine.decoder.interventions import parse_part
    from chatapp.lab.close_ups import Neighbours, Neurons, Norms, StateNeighbours, WeightSteps
    from chatapp.lab.experiments import token_of
    from chatapp.lab.heads import own_decoder
    from chatapp.lab.positions import Positions

    shape = own_decoder(model).decoder.architecture
    findings: list[Finding] = []
    if wanted.neighbours is not None:
        id = token_of(model.tokenizer, wanted.neighbours, "--neighbours")
        findings.append(Neighbours.of_token(model, id, top))
    if wanted.state is not None:
        findings.append(StateNeighbours.of_state(model, ids, wanted.state, position, top))
    if wanted.weight is not None:
        findings.append(WeightSteps.of(model, ids, parse_part(wanted.weight, shape), position))
    if wanted.norms:
        findings.append(Norms.of(model, ids, position))
    if wanted.neurons is not None:
        findings.append(Neurons.of(model, ids, parse_part(wanted.neurons, shape), top=top))
    if wanted.positions is not None:
        other = model.tokenizer.encode(wanted.positions)
        findings.append(Positions.of(model, ids, other, top))
    return findings


def draw_neighbours(neighbours: "Neighbours", width: int) -> list[RenderableType]:
    """A table for each matrix."""
    parts: list[RenderableType] = [heading("Neighbours", neighbours.sentence)]
    for title, rows in (("embedding", neighbours.embedding), ("output", neighbours.output)):
        if rows:
            parts += [Text(), draw_table([title, ">cosine", ""], _rows(rows, width), width)]
    return parts


def _rows(neighbours: "Sequence[Neighbour]", width: int) -> list[list[Text | str]]:
    size = _BAR if width >= 60 else 4
    return [
        [
            piece_text(neighbour.text),
            f"{neighbour.cosine:+.3f}",
            Text(bar(neighbour.cosine, size), "dim"),
        ]
        for neighbour in neighbours
    ]


def draw_weight(steps: "WeightSteps", width: int) -> list[RenderableType]:
    """The keys with the largest weights, with each step's number."""
    order = sorted(steps.keys, key=lambda key: -key.weight)[:_SHOWN]
    rows: list[list[Text | str]] = [
        [
            str(key.position),
            piece_text(key.text),
            f"{key.product:.2f}",
            f"{key.score:.2f}",
            percent(key.weight),
            f"{key.size:.3f}",
        ]
        for key in order
    ]
    columns = [">#", "key", ">q·k", ">scaled", ">softmax", ">weight·‖v‖"]
    total = Text(f"The mixed values have the norm {steps.mixed:.3f}.", "dim")
    return [heading("Weight", steps.sentence), draw_table(columns, rows, width), total]


def draw_norms(norms: "Norms", width: int) -> list[RenderableType]:
    """A row a state, with what the block before it added."""
    most = max(norms.stream) or 1.0
    rows: list[list[Text | str]] = []
    for index, (norm, other) in enumerate(zip(norms.stream, norms.others, strict=True)):
        added = ["", ""]
        if index:
            added = [f"{norms.attention[index - 1]:.2f}", f"{norms.mlp[index - 1]:.2f}"]
        mean = "" if other is None else f"{other:.2f}"
        shown = Text(bar(norm / most, _BAR if width >= 70 else 4), "green")
        rows.append([state_name(index), *added, f"{norm:.2f}", mean, shown])
    columns = [">layer", ">attention", ">MLP", ">stream", ">others", ""]
    return [heading("Norms", norms.sentence), draw_table(columns, rows, width)]


def draw_neurons(neurons: "Neurons", width: int) -> list[RenderableType]:
    """The neurons, and what each promotes."""
    rows: list[list[Text | str]] = [
        [
            neuron.name,
            f"{neuron.activation:+.3f}",
            f"{neuron.effect:+.3f}",
            Text(" ").join(map(piece_text, neuron.promotes)),
        ]
        for neuron in neurons.neurons
    ]
    columns = ["neuron", ">activation", ">effect", "promotes"]
    return [heading("Neurons", neurons.sentence), draw_table(columns, rows, width)]


def draw_positions(positions: "Positions", width: int) -> list[RenderableType]:
    """How alike positions are, then both texts under each kind of positions."""
    alike = "  ".join(
        f"{distance}: {value:+.2f}" for distance, value in positions.similarity.items()
    )
    drawn: list[RenderableType] = [
        heading("Positions", positions.sentence),
        Text(f"Similarity by distance  {alike}"),
    ]
    for title, texts in (
        ("after the first text", [row.first for row in positions.rows]),
        ("after the second", [row.second for row in positions.rows]),
    ):
        rows: list[list[Text | str]] = [
            [row.positions, f"{row.change:.3f}", f"{row.apart:.3f}", candidates_text(candidates)]
            for row, candidates in zip(positions.rows, texts, strict=True)
        ]
        columns = ["positions", ">change", ">apart", title]
        drawn += [Text(), draw_table(columns, rows, width)]
    return drawn
