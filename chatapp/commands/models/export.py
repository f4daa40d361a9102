"""`chatapp models export`: a model for other programs, as one GGUF file or as a folder."""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from chatapp.commands import options as shared
from chatapp.commands.console import complain, progress
from chatapp.common.userfiles import UserError, reason

if TYPE_CHECKING:
    from chatapp.engine.files.model_files import ModelFiles
    from chatapp.prompting.template import ShippedTemplate


def export(
    name: Annotated[
        str,
        typer.Argument(
            help="bundled, a folder, a GGUF file, a fine-tuned run, or a hub id.",
            autocompletion=shared.models,
        ),
    ],
    output: Annotated[
        Path,
        typer.Argument(help="The file to write, such as mine.gguf; another name is a new folder."),
    ],
    type: Annotated[
        Literal["f32", "f16", "q8_0"],
        typer.Option("--type", help="The format in which matrices are stored."),
    ] = "f16",
    unmerged: Annotated[
        bool,
        typer.Option("--unmerged", help="Write a LoRA adapter alone, to be applied to its base."),
    ] = False,
    force: shared.ForceOption = False,
) -> None:
    """Write a model as a GGUF file, which llama.cpp, Ollama and LM Studio load, or as a Hugging
    Face folder, which transformers loads."""
    from chatapp.engine.models.resolving import find_model

    is_file = output.suffix.lower() == ".gguf"
    if not is_file and os.path.lexists(output):
        raise UserError(f"{output}: exists already; name a new folder, or a file such as mine.gguf")
    if not is_file and type == "q8_0":
        raise UserError("--type is q8_0, which only a GGUF file can have; choose f32 or f16")
    if output.exists() and not force:
        raise UserError(f"{output}: this file already exists; --force replaces it")
    if output.is_dir():
        raise UserError(f"{output}: is a folder; expected the name of a file")
    files = find_model(name)
    if files.is_gguf and is_file and output.exists() and output.samefile(files.path):
        raise UserError(f"{output}: is the model itself; name another file")
    if unmerged and not (files.is_adapter and is_file):
        raise UserError(f"{name}: --unmerged writes an adapter to a file such as lora.gguf")
    write = _write_adapter if unmerged else _write_file if is_file else _write_folder
    try:
        remark = write(files, output, type)
        parts = [output] if is_file else [*output.iterdir()]
        size = sum(part.stat().st_size for part in parts)
    except OSError as error:
        raise UserError(f"{output}: cannot be written: {reason(error)}") from None
    if remark:
        complain(remark)
    complain(f"wrote {output}, {size / 1e6:,.1f} MB")


def _write_file(files: "ModelFiles", path: Path, kind: str) -> str:
    """Write a GGUF file; returns a remark, or ""."""
    from chatapp.common.paths import GGUF_TEMPLATE
    from chatapp.engine.exporting import write_gguf
    from chatapp.engine.files.gguf.vocabulary import CHAT_TEMPLATE
    from chatapp.prompting.template import as_jinja

    keys: dict[str, str] = {}
    if template := _own_template(files):
        saved = json.dumps(template.to_dict(), ensure_ascii=False)
        keys = {CHAT_TEMPLATE: as_jinja(template), GGUF_TEMPLATE: saved}
    with progress("Writing") as show:
        return write_gguf(files, path, kind, keys, show)


def _write_adapter(files: "ModelFiles", path: Path, kind: str) -> str:
    """Write an adapter alone; returns ""."""
    from chatapp.engine.exporting import write_adapter

    with progress("Writing") as show:
        write_adapter(files, path, kind, show)
    return ""


def _write_folder(files: "ModelFiles", folder: Path, kind: str) -> str:
    """Write a folder in the layout of the hub; returns ""."""
    from chatapp.common.paths import CHAT_TEMPLATE
    from chatapp.engine.exporting import write_folder
    from chatapp.prompting.template import as_jinja, save_template

    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name[:40]}.", dir=folder.parent) as draft:
        aside = Path(draft) / folder.name
        write_folder(files, aside, kind)
        if template := _own_template(files):
            save_template(template, aside)
            (aside / CHAT_TEMPLATE).write_text(as_jinja(template), encoding="utf-8")
        aside.rename(folder)
    return ""


def _own_template(files: "ModelFiles") -> "ShippedTemplate | None":
    """The template that a model was trained with here; None for another model."""
    from chatapp.dialogue.writers.choosing import own_template
    from chatapp.prompting.template import ShippedTemplate

    template = own_template(files, ())
    return template if isinstance(template, ShippedTemplate) else None
