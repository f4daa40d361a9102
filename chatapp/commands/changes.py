"""What `ask` and `complete` change inside the model.

Invariant: an answer of a changed model says so, on standard error or in its document.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.engine.decoder.interventions import Interventions
    from chatapp.engine.model import LanguageModel

AblateOption = Annotated[
    str | None,
    typer.Option(
        metavar="PARTS",
        help="Switch parts of the model off, such as 3.5,4.mlp: head 5 of layer 3, the MLP of "
        "layer 4.",
    ),
]


SteerOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=STRENGTH",
        help="Add a direction of `steer make` to the reply, as in calm=0.1; may be repeated.",
    ),
]


def changes_of(
    model: "LanguageModel", ablate: str | None, steer: "Sequence[str] | None" = None
) -> "Interventions":
    """The parts of --ablate, switched off, and the directions of --steer. Raises UserError for a
    model without such parts."""
    from chatapp.engine.decoder.interventions import UNCHANGED, parse_parts, switched_off

    if ablate is None and not steer:
        return UNCHANGED
    from chatapp.engine.backends.local import LocalModel

    if not isinstance(model, LocalModel):
        raise UserError(
            f"{model.name}: only models that chatapp computes itself have parts to switch off"
        )
    shape = model.decoder.architecture
    changes = UNCHANGED if ablate is None else switched_off(parse_parts(ablate, shape))
    if steer:
        from chatapp.lab.steering import steering

        for text in steer:
            changes += steering(text, shape)
    return changes
