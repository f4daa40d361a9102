"""`chatapp inspect VIEW TEXT`: the views of `chatapp.lab.views`, each a command of its own."""

import inspect as signatures
import sys
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from chatapp.commands import options as shared
from chatapp.commands.console import (
    interruptible,
    progress,
    standard_input,
    status,
    write,
    write_json,
    write_output,
)
from chatapp.commands.loading import choices_for, load
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:  # the views are imported when one is asked for: `chatapp --help` names none
    from chatapp.common.settings import Settings
    from chatapp.engine.files.model_files import ModelFiles
    from chatapp.lab.view import Option, Subject, View

_DEFAULT = "text"  # the command for a text without a view before it


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """Where the views go."""

    model: shared.ModelOption = None
    output: Annotated[
        Path | None, typer.Option(help="Write a self-contained file: .html or .svg.")
    ] = None
    force: shared.ForceOption = False
    as_json: shared.JsonOption = False

    def check(self) -> None:
        """Raises UserError for a file that cannot be written."""
        output = self.output
        if output is None:
            return
        if output.suffix.lower() not in (".html", ".svg"):
            raise UserError(f"{output}: unsupported file type; use .html or .svg")
        if self.as_json:
            raise UserError("use either --output or --json, not both")
        if output.exists() and not self.force:  # before the model is loaded
            raise UserError(f"{output}: this file already exists; --force replaces it")

    def take(self, views: Sequence["View"]) -> None:
        """Print views, or write them to the file."""
        if self.output is not None:
            from chatapp.lab.drawing.pictures import html_page, svg_picture

            draw = html_page if self.output.suffix.lower() == ".html" else svg_picture
            write_output(self.output, draw(views), force=self.force)
        else:
            from chatapp.lab.drawing.console import printed

            # Foreign text was made safe piece by piece; the rest are Rich's own colours.
            write(printed(views, in_color=sys.stdout.isatty()), verbatim=True)


class _Views(TyperGroup):
    """A command for each view; without a view's name, the arguments are those of `text`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        del self.commands

    @cached_property
    def commands(self) -> MutableMapping[str, Any]:  # type: ignore[override]
        """Each view's command by its name."""
        return typer.main.get_group(_commands()).commands

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else [_DEFAULT, *args])

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


app = typer.Typer(
    cls=_Views,
    rich_markup_mode=None,
    subcommand_metavar="[VIEW] TEXT [OPTIONS]...",
    help="Show what a model makes of a text, by views of its inside. "
    "Without a VIEW: tokens, next, attention, layers.",
)


def _run(
    context: typer.Context,
    views: Sequence[type["View"]],
    options: Any,
    text: str | None,
    target: OutputTarget,
) -> None:
    """Look at a text by views, and show them. Raises UserError."""
    takes_text, names = {view.takes_text for view in views}, {view.name for view in views}
    content = "" if takes_text == {"never"} else (text or "") + standard_input()
    target.check()
    if not content and "always" in takes_text:
        raise UserError("there is no text to inspect; pass it in quotes or on standard input")
    settings = shared.settings_of(context)
    with interruptible("interrupted"):
        subject = _masked_subject(settings, content, options, views)
        if subject is None:
            subject = _subject(settings, content, options, views)
        document: dict[str, Any] = {"model": subject.model.name}
        document |= {"text": content} if content else {}
        looked = list(views)
        is_plain = subject.masked is None and "attention" in names
        if is_plain and 0 < subject.trace.encoded < len(subject.ids):
            from chatapp.lab.views.attention_views import CrossAttention

            looked.append(CrossAttention)
        with progress("Measuring") as report:
            subject.progress = report
            if target.as_json:
                for view in looked:
                    document |= view.document(subject, options)
            else:
                shown = [view.look(subject, options) for view in looked]
    if target.as_json:
        write_json(document)
    else:
        target.take(shown)


def _subject(
    settings: "Settings", content: str, options: Any, views: Sequence[type["View"]]
) -> "Subject":
    """A text that a model has read, with the reply of an encoder-decoder. Raises UserError."""
    from chatapp.open_model import OpenModel

    opened = OpenModel(load(settings.model, "float32", settings.device))
    inspection = opened.inspect(content)
    sampling = None
    if any(view.samples for view in views):
        sampling = choices_for(opened.model, settings).sampling
    return inspection.subject(getattr(options, "token", None), sampling)


def _masked_subject(
    settings: "Settings", content: str, options: Any, views: Sequence[type["View"]]
) -> "Subject | None":
    """A text of which one token is masked; None for any model but a masked one.

    The token is that of --token, or the first mask of the text. Raises UserError for a text without
    a mask, and for a view that masked models do not have.
    """
    files = _masked_files(settings.model)
    if files is None:
        return None
    from chatapp.lab.view import Subject, token_position
    from chatapp.lab.views import FIRST, VIEWS

    if any(not view.reads_masks for view in views):
        known = [view.name for view in VIEWS.values() if view.reads_masks]
        raise UserError(f"{settings.model}: of a masked model, only {', '.join(known)} are shown")
    from chatapp.engine.backends.masked import MaskedModel

    status(f"Loading {settings.model} …")
    try:
        model = MaskedModel.load(files, name=settings.model, device=settings.device)
    finally:
        status("")
    ids, token = tuple(model.encode(content)), getattr(options, "token", None)
    if token is not None or (FIRST[0] in views[:1] and len(views) == 1):
        position = token_position(token, len(ids))
    elif model.mask_id in ids:
        position = ids.index(model.mask_id)
    else:
        raise UserError(
            f"the text has no mask; write {model.mask} where {model.name} shall fill in a token, "
            "or mask one of the text's own with --token"
        )
    return Subject(model, ids, position, masked=model)  # type: ignore[arg-type]


def _masked_files(name: str) -> "ModelFiles | None":
    """The files of a masked model on this machine; None for any other model."""
    from chatapp.engine.errors import ModelError
    from chatapp.engine.models.resolving import find_model, local_folder

    try:
        files = find_model(name) if local_folder(name) is not None else None
    except ModelError:
        return None  # loading it reports the fault
    return files if files is not None and files.is_masked else None


# The commands of the table


def _command(views: Sequence[type["View"]], options: type[Any]) -> Callable[..., None]:
    """A command that shows views; its parameters are their options."""
    takes_text = any(view.takes_text != "never" for view in views)
    declared = [(f, f.metadata["option"]) for f in fields(options) if "option" in f.metadata]
    hints = get_type_hints(options)
    parameters = [_parameter(f, o, hints[f.name]) for f, o in declared]
    parameters.sort(key=lambda p: p.default is not signatures.Parameter.empty)
    arguments = sum(o.is_argument for _, o in declared)

    def command(context: typer.Context, *, target: OutputTarget, **values: Any) -> None:
        text = values.pop("text", None)
        _run(context, views, options(**values), text, target)

    keyword = signatures.Parameter.KEYWORD_ONLY
    help_of_text = "The text to inspect. Standard input is appended to it."
    kind = Annotated[str | None, typer.Argument(metavar="TEXT", help=help_of_text)]
    text = signatures.Parameter("text", keyword, default=None, annotation=kind)
    own = list(signatures.signature(command).parameters.values())[:2]
    command.__signature__ = signatures.Signature(  # type: ignore[attr-defined]
        [
            own[0],
            *parameters[:arguments],
            *([text] if takes_text else []),
            *parameters[arguments:],
            own[1].replace(annotation=OutputTarget),
        ]
    )
    command = shared.grouped_options(command)
    if any(view.samples for view in views):
        command = shared.sampling_options("temperature", "top_k", "top_p", "min_p")(command)
    return command


def _parameter(field: "Field[Any]", option: "Option", kind: Any) -> signatures.Parameter:
    """An option of a view as a parameter of a command."""
    default: Any = field.default
    shared: dict[str, Any] = {"help": option.help, "metavar": option.metavar}
    if option.least is not None or option.most is not None:
        shared |= {"min": option.least, "max": option.most}
    if option.names:
        shared["autocompletion"] = lambda incomplete: [
            name for name in option.names if name.startswith(incomplete)
        ]
    if option.is_argument:
        shared["metavar"] = option.metavar or field.name.upper()
        default, declared = signatures.Parameter.empty, typer.Argument(**shared)
    elif kind is bool:
        declared = typer.Option(option.flag or f"--{field.name}", **shared)
    else:
        declared = typer.Option(*([option.flag] if option.flag else []), **shared)
    assert default is not MISSING
    return signatures.Parameter(
        field.name,
        signatures.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, declared],
    )


def _commands() -> typer.Typer:
    """The commands of the table, and that of a text without a view's name."""
    from chatapp.lab.views import FIRST, VIEWS
    from chatapp.lab.views.attention_views import AttentionOptions
    from chatapp.lab.views.layer_views import LayersOptions

    @dataclass(frozen=True)
    class FirstOptions(AttentionOptions, LayersOptions):
        """What the views of a text without a name take."""

    commands = typer.Typer(rich_markup_mode=None)
    for name, view in VIEWS.items():
        if name != "prompt":  # `chatapp render` shows that of a chat
            help = f"{view.summary}\n\n{view.formula}"
            commands.command(name, help=help)(_command([view], view.Options))
    first = f"Show {', '.join(view.name for view in FIRST)} of a text."
    commands.command(_DEFAULT, help=first)(_command(FIRST, FirstOptions))
    return commands
