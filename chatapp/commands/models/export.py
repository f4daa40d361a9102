"""`chatapp models export`: a model as one GGUF file, for llama.cpp and programs built on it.

Invariant: only --force replaces a file, and never with a partial one.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from chatapp.commands import options
from chatapp.commands.console import complain, progress
from chatapp.commands.options import ForceOption
from chatapp.common.userfiles import UserError, reason

if TYPE_CHECKING:
    from chatapp.engine.files.model_files import ModelFiles


def export(
    name: Annotated[
        str,
        typer.Argument(
            help="bundled, a folder, a fine-tuned run, or a hub id.",
            autocompletion=options.models,
        ),
    ],
    output: Annotated[Path, typer.Argument(help="The file to write, such as mine.gguf.")],
    type: Annotated[
        Literal["f32", "f16", "q8_0"],
        typer.Option("--type", help="The format in which matrices are stored."),
    ] = "f16",
    force: ForceOption = False,
) -> None:
    """Write a model as a GGUF file, which llama.cpp, Ollama and LM Studio load."""
    from chatapp.models.resolving import find_model

    if output.exists() and not force:
        raise UserError(f"{output}: this file already exists; --force replaces it")
    if output.is_dir():
        raise UserError(f"{output}: is a folder; expected the name of a file")
    files = find_model(name)
    if files.is_gguf:
        raise UserError(f"{files.path}: is a GGUF file already")

    from chatapp.engine.exporting import write_gguf

    try:
        with progress("Writing") as show:
            remark = write_gguf(files, output, type, _own_template(files), show)
    except OSError as error:
        raise UserError(f"{output}: cannot be written: {reason(error)}") from None
    if remark:
        complain(remark)
    complain(f"wrote {output}, {output.stat().st_size / 1e6:,.1f} MB")


def _own_template(files: "ModelFiles") -> dict[str, str]:
    """The keys of the template that a model was trained with here; none for another model."""
    from chatapp.common.paths import GGUF_TEMPLATE
    from chatapp.engine.files.gguf.vocabulary import CHAT_TEMPLATE
    from chatapp.prompting.template import as_jinja, load_template

    if files.template is None or (template := load_template(files.template.parent)) is None:
        return {}
    saved = json.dumps(template.to_dict(), ensure_ascii=False)
    return {CHAT_TEMPLATE: as_jinja(template), GGUF_TEMPLATE: saved}
