"""`chatapp complete`: continues a text."""

from functools import partial
from typing import Annotated

import typer

from chatapp.commands import options as shared
from chatapp.commands.answers import AblateOption, SteerOption, changes_of, print_answer
from chatapp.commands.console import standard_input
from chatapp.commands.loading import choices_for, load
from chatapp.common.userfiles import UserError


@shared.sampling_options()
def complete(
    context: typer.Context,
    text: Annotated[
        str | None, typer.Argument(help="The text to continue. Standard input is appended to it.")
    ] = None,
    model: shared.ModelOption = None,
    precision: shared.PrecisionOption = None,
    ablate: AblateOption = None,
    steer: SteerOption = None,
    as_json: shared.JsonOption = False,
) -> None:
    """Continue a text, without a dialogue."""
    settings = shared.settings_of(context)
    prompt = (text or "") + standard_input().removesuffix("\n")
    if not prompt.strip():
        raise UserError("there is no text to continue; pass it in quotes or on standard input")

    from chatapp.dialogue.events import Options
    from chatapp.dialogue.turn import complete as continuation

    language_model = load(settings.model, settings.precision, settings.device)
    choices = choices_for(language_model, settings)
    options = Options(choices.sampling, changes=changes_of(language_model, ablate, steer))
    continued = partial(continuation, language_model, prompt)
    print_answer(continued, options, settings.model, choices, None, as_json=as_json)
