"""`chatapp inspect --neighbours, --state, --weight, --norms, --neurons, --experts, --positions`.

Invariant: nothing of torch is imported before a model is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from chatapp.lab.findings import Finding

if TYPE_CHECKING:
    from chatapp.engine.model import LanguageModel


@dataclass(frozen=True, slots=True)
class CloseUps:
    """What the options of `inspect` say; None or False where not given.

    neighbours: a token. state: `embed` or a layer. weight: a head. neurons: an MLP. positions:
    another text.
    """

    neighbours: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help='Show the tokens nearest to a token, such as " king".'),
    ] = None
    state: Annotated[
        str | None,
        typer.Option(
            metavar="LAYER",
            help="Show the tokens nearest to a layer's hidden state, or to embed's.",
        ),
    ] = None
    weight: Annotated[
        str | None,
        typer.Option(
            metavar="HEAD", help="Show step by step how a head, such as 3.5, weighs keys."
        ),
    ] = None
    norms: Annotated[
        bool, typer.Option("--norms", help="Show the residual stream's norm by layer.")
    ] = False
    neurons: Annotated[
        str | None,
        typer.Option(
            metavar="MLP",
            help="Show the neurons of an MLP, such as 4.mlp, with the largest effect.",
        ),
    ] = None
    experts: Annotated[
        bool, typer.Option("--experts", help="Show which experts each token went to.")
    ] = False
    positions: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Compare with a text of as many tokens in another order: with positions as they "
            "are, switched off and shuffled.",
        ),
    ] = None

    @property
    def are_given(self) -> bool:
        """Whether there is one of them."""
        options = (self.neighbours, self.state, self.weight, self.neurons, self.positions)
        return self.norms or self.experts or any(option is not None for option in options)


def find_close_ups(
    model: "LanguageModel", ids: Sequence[int], position: int, wanted: CloseUps, top: int
) -> list[Finding]:
    """The close-ups, in the order of the options. Raises UserError.

    ids: of the text up to the token at `position`.
    """
    from chatapp.engine.decoder.interventions import Part, parse_part
    from chatapp.lab.architectures.experts import Experts
    from chatapp.lab.architectures.positions import Positions
    from chatapp.lab.close_ups import Neighbours, Neurons, Norms, StateNeighbours, WeightSteps
    from chatapp.lab.experiments import token_of
    from chatapp.lab.heads import own_decoder

    def part(name: str) -> Part:
        return parse_part(name, own_decoder(model).decoder.architecture)

    findings: list[Finding] = []
    if wanted.neighbours is not None:
        id = token_of(model.tokenizer, wanted.neighbours, "--neighbours")
        findings.append(Neighbours.of_token(model, id, top))
    if wanted.state is not None:
        findings.append(StateNeighbours.of_state(model, ids, wanted.state, position, top))
    if wanted.weight is not None:
        findings.append(WeightSteps.of(model, ids, part(wanted.weight), position))
    if wanted.norms:
        findings.append(Norms.of(model, ids, position))
    if wanted.neurons is not None:
        findings.append(Neurons.of(model, ids, part(wanted.neurons), top=top))
    if wanted.positions is not None:
        other = model.tokenizer.encode(wanted.positions)
        findings.append(Positions.of(model, ids, other, top))
    if wanted.experts:
        findings.append(Experts.of(model, ids))
    return findings
