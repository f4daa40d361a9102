"""`chatapp inspect`: what a model makes of a text, token by token.

Keep: the terminal, the exported file and the JSON document show the same numbers, and text of
others is text in all three.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from chatapp.commands.console import interruptible, standard_input, write, write_json, write_output
from chatapp.commands.loading import choices_for, load
from chatapp.commands.options import (
    ForceOption,
    JsonOption,
    ModelOption,
    sampling_options,
    settings_of,
)
from chatapp.common.userfiles import UserError
from chatapp.lab.findings import SECTIONS, Findings, document


@sampling_options("temperature", "top_k", "top_p", "min_p")
def inspect(
    context: typer.Context,
    text: Annotated[
        str | None, typer.Argument(help="What to look at. Standard input is appended to it.")
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Show the tokens and how probable each was.")
    ] = False,
    next_token: Annotated[
        bool, typer.Option("--next", help="Show what may come next, before and after the cut.")
    ] = False,
    attention: Annotated[
        bool, typer.Option("--attention", help="Show what a token attends to.")
    ] = False,
    layers: Annotated[
        bool, typer.Option("--layers", help="Show what each layer would predict after a token.")
    ] = False,
    token: Annotated[
        int | None,
        typer.Option(help="Which token, from 0, or from the end: -1. The last if not given."),
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Attention of one layer alone, from 1.")] = None,
    head: Annotated[int | None, typer.Option(help="Attention of one head alone, from 1.")] = None,
    top: Annotated[int, typer.Option(min=1, max=100, help="How many alternatives.")] = 10,
    output: Annotated[
        Path | None, typer.Option(help="Write a self-contained file: .html or .svg.")
    ] = None,
    force: ForceOption = False,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a model makes of a text: tokens, attention, layers, what comes next.

    Without a choice among --tokens, --next, --attention and --layers it shows all of them.
    """
    settings = settings_of(context)
    given = (text or "") + standard_input()
    if not given:
        raise UserError("there is no text to look at; give it in quotes or on standard input")
    if output is not None:
        _check_output(output, as_json, force)
    wanted = dict(zip(SECTIONS, (tokens, next_token, attention, layers), strict=True))
    sections = [name for name in SECTIONS if wanted[name]] or list(SECTIONS)
    language_model = load(settings.model, "float32", settings.device)
    with interruptible("interrupted"):
        sampling = choices_for(language_model, settings).sampling
        findings = Findings(language_model, given, sampling, token, (layer, head), top)
        if as_json:
            write_json(document(findings, sections, whole=token is None))
        elif output is not None:
            _export(findings, sections, output, force=force)
        else:
            _show(findings, sections)


def _check_output(output: Path, as_json: bool, force: bool) -> None:
    """Raises UserError for a file that would not be written."""
    if output.suffix.lower() not in (".html", ".svg"):
        raise UserError(f"{output}: is no kind of file to write; expected .html or .svg")
    if as_json:
        raise UserError("--output and --json exclude each other")
    if output.exists() and not force:  # said before the model is loaded
        raise UserError(f"{output}: this file exists; --force replaces it")


def _show(findings: Findings, sections: list[str]) -> None:
    """Print on standard output, in colour where it is a terminal that has them."""
    from chatapp.commands.inspect_render import printed

    # Foreign text was made safe piece by piece; what else there is are Rich's own colours.
    write(printed(findings, sections, in_color=sys.stdout.isatty()), verbatim=True)


def _export(findings: Findings, sections: list[str], output: Path, *, force: bool) -> None:
    from chatapp.commands.inspect_render import html_page, svg_picture

    draw = html_page if output.suffix.lower() == ".html" else svg_picture
    write_output(output, draw(findings, sections), force=force)
