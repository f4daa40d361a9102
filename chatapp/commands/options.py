"""Options that several commands share, and the settings that they are laid over.

Keep: an option that is not given is None, so that the settings decide; and nothing here imports
what a command needs only when it runs.
"""

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chatapp.commands import completion
from chatapp.parameters import PARAMETERS, Parameter

if TYPE_CHECKING:
    from chatapp.settings import Settings

ModelOption = Annotated[
    str | None,
    typer.Option(
        help="bundled, a model's folder, the id of a model on the hub, or a server.",
        autocompletion=completion.models,
    ),
]
TemplateOption = Annotated[
    str | None,
    typer.Option(
        help="Dialogue template; the model's own if not given. NAME! insists on a wrong one.",
        autocompletion=completion.templates,
    ),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        help="What a model is computed in: auto, float32, bfloat16, int8 or int4.",
        autocompletion=completion.precisions,
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def sampling_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command flags for these sampling parameters, or for all of them.

    Their values do not reach the command itself: `settings_of` takes them from the context.
    """
    flags = [_flag(PARAMETERS[name]) for name in names or PARAMETERS]

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)

        @functools.wraps(command)
        def with_flags(**arguments: Any) -> None:
            command(**{name: arguments[name] for name in signature.parameters})

        parameters = [*signature.parameters.values(), *flags]
        with_flags.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return with_flags

    return decorated


def settings_of(context: typer.Context, model: str | None = None) -> "Settings":
    """The settings, with the flags of the command that has their names.

    model: which one where no flag names one; None or "" for that of the settings.
    """
    from chatapp.settings import load_settings

    names = ("model", "template", "precision", *PARAMETERS)
    flags = {name: context.params.get(name) for name in names}
    if flags["model"] is None:
        flags["model"] = model or None
    return load_settings(flags)


def _flag(parameter: Parameter) -> inspect.Parameter:
    help = f"{parameter.help[0].upper()}{parameter.help[1:]}."
    return inspect.Parameter(
        parameter.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[parameter.kind | None, typer.Option(help=help)],
    )
