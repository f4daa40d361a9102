"""`chatapp models`: what models there are, what one consists of, how one is brought or exported.

Keep: figures are read from the model's own files, or told by its server; nothing is loaded, and no
server is asked for a list.

`chatapp models get` and `remove`: bringing a model to this machine, and taking it away.

Keep: progress and notices go to standard error; standard output holds where the model is, or
one JSON document.

`chatapp models export`: a model as one GGUF file, for llama.cpp and what is built on it.

Keep: a file that is there is replaced only when that is asked for, and never by half of another.
"""

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from chatapp.commands import options
from chatapp.commands.console import complain, interruptible, progress, write, write_json
from chatapp.commands.options import JsonOption
from chatapp.common.userfiles import UserError, reason

if TYPE_CHECKING:
    from chatapp.common.parameters import Choices
    from chatapp.engine.backends.remote.server import Server
    from chatapp.engine.files.model_files import ModelFiles
    from chatapp.models.catalogue import ListedModel
    from chatapp.models.description import ModelInfo
    from chatapp.models.packages import Progress


def get(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A short name, or an id on the hub; without it, the short names are listed.",
            show_default=False,
            autocompletion=options.known,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Download a model, or what is missing of it."""
    from chatapp.models.fetching import fetch

    if name is None:
        _list_known(as_json=as_json)
        return
    with interruptible("interrupted; the same command goes on"), _bar(name) as progress:
        model = fetch(name, say=complain, progress=progress)
    if as_json:
        write_json({"name": name, **model.document()})
    else:
        write(f"{name} is in {model.folder}\nchat with it: chatapp --model {shlex.quote(name)}\n")


def remove(
    name: Annotated[
        str,
        typer.Argument(
            help="What `models get` has downloaded, by the same name.",
            autocompletion=options.fetched,
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a model that `models get` has downloaded, and nothing else."""
    from chatapp.common.shading import size_in_words
    from chatapp.models import fetched

    model = fetched.find_fetched(name)
    if model is not None and not yes:
        if not sys.stdin.isatty():
            raise UserError("removing a model has to be confirmed with --yes")
        if not typer.confirm(f"Remove {name}, {size_in_words(model.bytes)}?", err=True):
            complain("nothing was removed")
            raise typer.Exit(1)
    complain(f"removed {name}, which frees {size_in_words(fetched.remove(name))}")


def _list_known(*, as_json: bool) -> None:
    """The models with a short name, each with what it is for."""
    from chatapp.models.known_models import known_models

    models = known_models().values()
    if as_json:
        write_json(
            [
                {
                    "name": model.name,
                    "hub": model.hub,
                    "bytes": model.bytes,
                    "licence": model.licence,
                    "purpose": model.purpose,
                    "package": model.package.requirement if model.package else None,
                    "package_bytes": model.package.bytes if model.package else None,
                }
                for model in models
            ]
        )
        return
    width = max(len(model.size) for model in models)
    for model in models:
        write(f"{model.name:13}  {model.size:<{width}}  {model.licence:18}  {model.purpose}\n")


@contextmanager
def _bar(name: str) -> "Iterator[Progress]":
    """A bar of bytes on standard error while the context lasts, if that is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


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
        Literal["f32", "f16", "q8_0"], typer.Option("--type", help="What matrices are stored as.")
    ] = "f16",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a model as a GGUF file, which llama.cpp, Ollama and LM Studio load."""
    from chatapp.models.resolving import find_model

    if output.exists() and not force:
        raise UserError(f"{output}: this file exists; --force replaces it")
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
    complain(f"{output} is written, {output.stat().st_size / 1e6:,.1f} MB")


def _own_template(files: "ModelFiles") -> dict[str, str]:
    """The keys of the template that a model was trained in here; none for another model."""
    from chatapp.common.paths import GGUF_TEMPLATE
    from chatapp.engine.files.gguf.vocabulary import CHAT_TEMPLATE
    from chatapp.prompting.template import as_jinja, load_template

    if files.template is None or (template := load_template(files.template.parent)) is None:
        return {}
    saved = json.dumps(template.to_dict(), ensure_ascii=False)
    return {CHAT_TEMPLATE: as_jinja(template), GGUF_TEMPLATE: saved}


app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

app.command()(get)

app.command()(remove)

app.command()(export)


@app.command("list")
def list_models(as_json: JsonOption = False) -> None:
    """List the models on this machine, and the servers that have a name."""
    from chatapp.common.settings import load_settings
    from chatapp.models import catalogue

    settings = load_settings()
    models = catalogue.on_this_machine(settings.precision, settings.device)
    models += catalogue.unfinished() + catalogue.servers()
    if as_json:
        write_json([_row(model) for model in models])
        return
    if not models:
        complain("there is no model on this machine")
    width = max((len(model.name) for model in models), default=0)
    for model in models:
        write(f"{model.name:<{width}}  {model.about}\n")


def _row(model: "ListedModel") -> dict[str, Any]:
    """What is known of a model, for JSON."""
    row: dict[str, Any] = {"name": model.name, "origin": model.origin}
    if model.server:
        return row | {"server": model.server}
    row |= {"bytes": model.bytes, "memory": model.memory}
    return row | (_document(model.info) if model.info is not None else {"error": model.remark})


@app.command()
def info(
    name: Annotated[
        str,
        typer.Argument(
            help="bundled, a folder, a hub id, or a server.", autocompletion=options.models
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Show what a model consists of."""
    from chatapp.common.settings import load_settings
    from chatapp.common.shading import size_in_words
    from chatapp.engine.files.model_files import read_generation_config
    from chatapp.models.description import describe, memory_needed
    from chatapp.models.loading import usual_precision
    from chatapp.models.resolving import BUNDLED, find_model
    from chatapp.models.servers import server_of

    if name != BUNDLED and (server := server_of(name)) is not None:
        _show_server(server, name, as_json=as_json)
        return
    files = find_model(name)
    described = describe(files)
    settings = load_settings()
    precision = usual_precision(files, settings.device)
    memory = memory_needed(described, precision)
    makers = read_generation_config(files.path)
    for sentence in makers.ignored:
        complain(sentence)
    choices = settings.choices(makers.sampling)
    if as_json:
        drawn = choices.document(choices.sampling)
        facts = {"precision": precision, "memory": memory, "sampling": drawn}
        write_json({"name": name, **_document(described), **facts})
        return
    lines = {
        "name": name,
        **_facts(described),
        "computed in": f"{precision}, unless another precision is chosen",
        "in memory": f"about {size_in_words(memory)}",
        "template": described.template or "none of its own; plain is used",
        "licence": described.licence or "not named",
        "sampling": _chosen_sampling(choices),
    }
    _write_lines(lines)


def _facts(described: "ModelInfo") -> dict[str, str]:
    """What a model consists of, by what it is called."""
    from chatapp.common.shading import size_in_words
    from chatapp.models.description import GPT2_FORMULA

    by_formula = described.parameters_by_formula
    left_out = described.formula == GPT2_FORMULA
    sizes = {
        "layers (L)": described.layers,
        "heads": described.heads,
        "hidden size (H)": described.hidden_size,
        "vocabulary (V)": described.vocabulary,
    }
    lines = {name: f"{size:,}" for name, size in sizes.items() if size}
    if described.vocabulary:
        lines["vocabulary (V)"] += " tokens"
    if unknown := ", ".join(name for name, size in sizes.items() if size is None):
        lines["not known"] = f"{unknown}: the configuration has no one figure for the whole model"
    return {
        "folder": str(described.folder),
        "architecture": described.architecture,
        "parameters": f"{described.parameters:,} counted in the checkpoint",
        "": "" if by_formula is None else f"{by_formula:,} by {described.formula}",
        " ": "(which leaves out the 4LH of the blocks' norms)" if left_out else "",
        **lines,
        "context (n)": f"{described.context:,} tokens",
        **described.parts,
        "stored as": described.dtype,
        "on disk": size_in_words(described.bytes),
    }


def _chosen_sampling(choices: "Choices") -> str:
    """The sampling parameters that somebody has chosen, and who."""
    values = choices.document(choices.sampling).items()
    chosen = [f"{name} {it['value']} ({it['from']})" for name, it in values]
    return ", ".join(part for part in chosen if not part.endswith("(default)")) or "the defaults"


def _show_server(server: "Server", name: str, *, as_json: bool) -> None:
    """What a server says of its model. Raises ModelError."""
    from chatapp.engine.backends.remote.connecting import connect
    from chatapp.engine.model import ChatModel

    model = connect(server, name=name)
    converses = isinstance(model, ChatModel)
    facts = {
        "name": model.name,
        "server": model.server.url,
        "model": model.server.model,
        "context": model.context,
        "protocol": "chat" if converses else "completions",
    }
    if as_json:
        write_json(facts)
    else:
        template = "the server's own" if converses else "none of its own; plain is used"
        _write_lines({**facts, "context": f"{model.context:,} tokens", "template": template})
    if model.remark:
        complain(model.remark)


def _write_lines(lines: dict[str, Any]) -> None:
    width = max(map(len, lines))
    write("".join(f"{name:<{width}}  {value}\n" for name, value in lines.items() if value))


def _document(info: "ModelInfo") -> dict[str, Any]:
    return asdict(info) | {"folder": str(info.folder)}
