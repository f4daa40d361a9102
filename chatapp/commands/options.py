"""Options shared by several commands, their shell completion, and their merging with the settings.

Invariant: an absent option is None, so that the settings decide. Heavy modules are not imported
here. Completion offers names without errors, torch and the network; if it offers nothing, the shell
completes file names.
"""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from chatapp.commands.loading import open_store
from chatapp.common.foreign import one_line
from chatapp.common.parameters import PARAMETERS, PRECISIONS, Parameter
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.common.settings import Settings


Names = list[str | tuple[str, str]]
"""Each with a description, if there is one."""


_MOST_CHATS, _TITLE = 20, 40


def _offered(names: Callable[[], Iterable[str | tuple[str, str]]]) -> Callable[[str], Names]:
    """The names that begin like the current word."""

    def offer(incomplete: str) -> Names:
        try:
            known = list(names())
        except (UserError, OSError):
            return []
        return [
            name
            for name in known
            if (name if isinstance(name, str) else name[0]).startswith(incomplete)
        ]

    offer.__doc__ = names.__doc__
    return offer


def _for_lists(offer: Callable[[str], Names]) -> Callable[[str], Names]:
    """The same names for the last item of a list with commas."""

    def offer_last(incomplete: str) -> Names:
        before, comma, last = incomplete.rpartition(",")
        return [
            f"{before}{comma}{name}"
            if isinstance(name, str)
            else (f"{before}{comma}{name[0]}", name[1])
            for name in offer(last)
        ]

    return offer_last


@_offered
def models() -> Iterable[str]:
    """Models on this machine, and servers with a name."""
    from chatapp.engine.models.resolving import local_models, named_servers

    return [*local_models(), *named_servers()]


@_offered
def known() -> Iterable[tuple[str, str]]:
    """Models with a short name, which `models get` downloads."""
    from chatapp.engine.models.known_models import known_models

    return [(model.name, model.purpose) for model in known_models().values()]


@_offered
def fetched() -> Iterable[str]:
    """Models that `models get` has downloaded."""
    from chatapp.engine.models.fetching import fetched_models

    return [model.name for model in fetched_models()]


@_offered
def templates() -> Iterable[str]:
    """Built-in dialogue templates."""
    from chatapp.prompting.template import TEMPLATES

    return TEMPLATES


@_offered
def prompts() -> Iterable[str]:
    """Prompt files by name."""
    from chatapp.tasks.files.library import tasks

    return tasks()


@_offered
def personas() -> Iterable[str]:
    """Personas by name."""
    from chatapp.tasks.files.library import personas

    return personas()


@_offered
def methods() -> Iterable[tuple[str, str]]:
    """Methods to choose demonstrations."""
    from chatapp.tasks.selection.methods import METHODS

    return [(name, method.summary) for name, method in METHODS.items()]


precisions = _offered(lambda: PRECISIONS)
lists_of_methods = _for_lists(methods)


@_for_lists
@_offered
def paper_tasks() -> Iterable[str]:
    """Tasks of the GPT-3 paper."""
    from chatapp.tasks.evaluation.gpt3_tasks import TASKS

    return TASKS


@_offered
def chats() -> Iterable[tuple[str, str]]:
    """The most recent chats, by their ids."""
    from chatapp.common.paths import database_path

    if not database_path().exists():
        return []
    with open_store() as store:
        latest = store.chats(limit=_MOST_CHATS)
    return [(str(chat.id), one_line(chat.title)[:_TITLE]) for chat in latest]


StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse a pool in which an input has two labels.")
]


ModelOption = Annotated[
    str | None,
    typer.Option(
        help="bundled, a model's folder, the id of a model on the hub, or a server.",
        autocompletion=models,
    ),
]
TemplateOption = Annotated[
    str | None,
    typer.Option(
        help="Dialogue template; default: the model's own. NAME! forces a template that the "
        "model was not trained with.",
        autocompletion=templates,
    ),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        help=f"Number format for computing: {', '.join(PRECISIONS)}.", autocompletion=precisions
    ),
]
ConcurrencyOption = Annotated[
    int | None,
    typer.Option(min=1, max=256, help="Requests at a time, for a model on a server; 4 by default."),
]
NoServerOption = Annotated[
    bool, typer.Option("--no-server", help="Load the model even if a running `chatapp api` has it.")
]
McpServersOption = Annotated[
    str | None,
    typer.Option("--mcp-servers", help="A JSON file with the mcpServers block of another program."),
]
MethodOption = Annotated[
    str,
    typer.Option(
        help="How to search: bm25, encoder or both; an encoder may follow, such as both:minilm."
    ),
]
HostOption = Annotated[str, typer.Option(help="Address to listen on.")]
PortOption = Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")]
LastOption = Annotated[bool, typer.Option("--continue", "-c", help="Continue the last chat.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def name_mcp_servers(path: str | None) -> None:
    """Set `mcp_servers` as its environment variable does: tools are found in many places."""
    if path is not None:
        os.environ["CHATAPP_MCP_SERVERS"] = os.path.abspath(os.path.expanduser(path))


def grouped_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take dataclasses of options: each of their fields is an option of its own.

    A field is annotated as a parameter of a command would be, and has its default.
    """
    signature = inspect.signature(command)
    groups = {
        name: [
            _keyword(field.name, hints[field.name], field.default)
            for field in dataclasses.fields(group)
        ]
        for name, group in ((n, p.annotation) for n, p in signature.parameters.items())
        if dataclasses.is_dataclass(group)
        for hints in [get_type_hints(group, include_extras=True)]
    }

    @functools.wraps(command)
    def with_groups(**arguments: Any) -> None:
        for name, options in groups.items():
            values = {option.name: arguments.pop(option.name) for option in options}
            arguments[name] = signature.parameters[name].annotation(**values)
        command(**arguments)

    parameters = [
        option
        for name, parameter in signature.parameters.items()
        for option in groups.get(name, [parameter])
    ]
    with_groups.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    )
    return with_groups


def sampling_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add flags for these sampling parameters to a command, by default for all of them.

    Their values do not reach the command itself: `settings_of` takes them from the context.
    """
    return _with_options([_flag(PARAMETERS[name]) for name in names or PARAMETERS])


def _with_options(
    options: list[inspect.Parameter],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add options to a command whose values only reach it through its context."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)

        @functools.wraps(command)
        def with_options(**arguments: Any) -> None:
            command(**{name: arguments[name] for name in signature.parameters})

        parameters = [*signature.parameters.values(), *options]
        with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return with_options

    return decorated


def prompt_options(
    *, several: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add an option for each of `tasks.settings.SETTINGS` to a command; None where it is not given.

    several: each takes several values, separated by commas. The command takes the values from its
    context.
    """
    from chatapp.tasks.selection.methods import help_on_methods
    from chatapp.tasks.settings import SETTINGS

    options = []
    for name, setting in SETTINGS.items():
        extra: dict[str, Any] = {}
        if name == "shots":
            extra = {"metavar": "<integers>" if several else "<integer>"}
            more = ", such as 0,1,8" if several else ""
        elif name == "select":
            extra = {"autocompletion": lists_of_methods if several else methods}
            more = f". {help_on_methods()}"
        else:
            more = f" ({', '.join(setting.values or ())})"
        help = f"{setting.help}{more}".removesuffix(".") + "."
        option = Annotated[str | None, typer.Option(help=help, show_default=False, **extra)]
        options.append(_keyword(name, option))
    return _with_options(options)


def settings_of(context: typer.Context, model: str | None = None) -> "Settings":
    """The settings, overridden by the flags of the command with their names.

    model: used if no flag names one; None or "" for that of the settings.
    """
    from chatapp.common.settings import load_settings

    names = ("model", "template", "precision", *PARAMETERS)
    flags = {name: context.params.get(name) for name in names}
    if flags["model"] is None:
        flags["model"] = model or None
    return load_settings(flags)


_KINDS: Mapping[type, str] = {float: "<float>", int: "<integer>"}


def _flag(parameter: Parameter) -> inspect.Parameter:
    # As text: the settings check all values alike, and refuse them in their own words.
    option = typer.Option(
        help=parameter.sentence, metavar=_KINDS[parameter.kind], show_default=False
    )
    return _keyword(parameter.name, Annotated[str | None, option])


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
