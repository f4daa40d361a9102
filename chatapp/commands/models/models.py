"""`chatapp models`: the available models, and the description of one."""

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chatapp.commands import options as shared
from chatapp.commands.console import complain, write, write_json
from chatapp.commands.models.export import export
from chatapp.commands.models.get import get, remove
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.common.parameters import Choices
    from chatapp.engine.backends.remote.http import Server
    from chatapp.engine.models.catalogue import ListedModel
    from chatapp.engine.models.description import ModelInfo

_TOOL_CHOICE = {
    "own": "the model opens calls itself, in the format of its template",
    "scored": "chosen by likelihood after examples, because its template has no calls",
}

app = typer.Typer(
    help="List, describe, download, export and remove models.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command()(get)
app.command()(remove)
app.command()(export)


@app.command("list")
def list_models(as_json: shared.JsonOption = False) -> None:
    """List the models on this machine, and the servers that have a name."""
    from chatapp.common.settings import load_settings
    from chatapp.engine.models import catalogue

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
    """The known facts of a model, for JSON."""
    row: dict[str, Any] = {"name": model.name, "origin": model.origin}
    if model.server:
        return row | {"server": model.server}
    row |= {"bytes": model.bytes, "memory": model.memory}
    return row | (_document(model.info) if model.info is not None else {"error": model.remark})


@app.command()
def info(
    name: Annotated[
        str | None,
        typer.Argument(
            help="bundled, a folder, a hub id, or a server.", autocompletion=shared.models
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="L,H,V,n",
            help="Count the parameters of a GPT with L layers, width H, V tokens and context n.",
        ),
    ] = None,
    as_json: shared.JsonOption = False,
) -> None:
    """Show what a model consists of."""
    if (name is None) == (shape is None):
        raise UserError("give either the name of a model or --shape")
    if shape is not None:
        _show_shape(shape, as_json=as_json)
    else:
        assert name is not None
        _show_model(name, as_json=as_json)


def _show_shape(shape: str, *, as_json: bool) -> None:
    """The parameters of a GPT of a shape, by the formulas. Raises UserError."""
    from chatapp.engine.models.description import (
        GPT2_FORMULA,
        GPT_FORMULA,
        gpt2_parameters,
        gpt_parameters,
    )

    match = re.fullmatch(r"(\d{1,9}),(\d{1,9}),(\d{1,9}),(\d{1,9})", shape, re.ASCII)
    if match is None:
        raise UserError(f"--shape is {shape!r}; expected L,H,V,n, such as 12,768,50257,1024")
    layers, hidden, vocabulary, context = map(int, match.groups())
    before = gpt2_parameters(layers, hidden, vocabulary, context)
    after = gpt_parameters(layers, hidden, vocabulary, context)
    if as_json:
        write_json({"norms_before": before, "norms_after": after})
        return
    lines = {
        "GPT-2, GPT-3": f"{before:,} by {GPT2_FORMULA}",
        "GPT": f"{after:,} by {GPT_FORMULA}",
        "": f"(which leave out the 4LH biases of the attention, {4 * layers * hidden:,})",
    }
    _write_lines(lines)


def _show_model(name: str, *, as_json: bool) -> None:
    from chatapp.common.settings import load_settings
    from chatapp.common.userfiles import size_in_words
    from chatapp.dialogue.writers.choosing import tool_choice_of
    from chatapp.engine.files.model_files import read_generation_config
    from chatapp.engine.kernels.native import kernels
    from chatapp.engine.models.description import describe, memory_needed
    from chatapp.engine.models.loading import usual_precision
    from chatapp.engine.models.resolving import BUNDLED, find_model, server_of

    if name != BUNDLED and (server := server_of(name)) is not None:
        _show_server(server, name, as_json=as_json)
        return
    files = find_model(name)
    described = describe(files)
    settings = load_settings()
    precision = usual_precision(files, settings.device)
    memory = memory_needed(described, precision)
    makers = read_generation_config(files)
    for sentence in makers.ignored:
        complain(sentence)
    choices = settings.choices(makers.sampling)
    choice = tool_choice_of(files)
    if as_json:
        drawn = choices.document(choices.sampling)
        facts = {"precision": precision, "kernels": kernels().reason, "memory": memory}
        facts |= {"sampling": drawn, "tool_choice": choice}
        write_json({"name": name, **_document(described), **facts})
        return
    lines = {
        "name": name,
        **_facts(described),
        "computed in": f"{precision}, unless another precision is chosen",
        "multiplied by": kernels().reason,
        "in memory": f"about {size_in_words(memory)}",
        "template": described.template or "none of its own; plain is used",
        "tools": _TOOL_CHOICE[choice],
        "licence": described.licence or "not named",
        "sampling": _chosen_sampling(choices),
    }
    _write_lines(lines)


def _facts(described: "ModelInfo") -> dict[str, str]:
    """The facts of a model by their labels."""
    from chatapp.common.userfiles import size_in_words
    from chatapp.engine.models.description import GPT2_FORMULA

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
        lines["not known"] = f"{unknown}: the configuration has no single value for the whole model"
    return {
        "folder": str(described.folder),
        "architecture": described.architecture,
        "parameters": f"{described.parameters:,} counted in the checkpoint",
        "": "" if by_formula is None else f"{by_formula:,} by {described.formula}",
        " ": "(which leaves out the 4LH biases of the attention)" if left_out else "",
        **lines,
        "context (n)": f"{described.context:,} tokens",
        **described.parts,
        "stored as": described.dtype,
        "on disk": size_in_words(described.bytes),
    }


def _chosen_sampling(choices: "Choices") -> str:
    """The sampling parameters that somebody has chosen, with their origins."""
    values = choices.document(choices.sampling).items()
    chosen = [f"{name} {it['value']} ({it['from']})" for name, it in values]
    return ", ".join(part for part in chosen if not part.endswith("(default)")) or "the defaults"


def _show_server(server: "Server", name: str, *, as_json: bool) -> None:
    """A server's description of its model. Raises ModelError."""
    from chatapp.engine.backends.remote.remote_model import connect

    model = connect(server, name=name)
    facts = {
        "name": model.name,
        "server": model.server.url,
        "model": model.server.model,
        "context": model.context,
        "protocol": "chat" if model.takes_messages else "completions",
    }
    if as_json:
        write_json(facts)
    else:
        template = "the server's own" if model.takes_messages else "none of its own; plain is used"
        _write_lines({**facts, "context": f"{model.context:,} tokens", "template": template})
    if model.remark:
        complain(model.remark)


def _write_lines(lines: dict[str, Any]) -> None:
    width = max(map(len, lines))
    write("".join(f"{name:<{width}}  {value}\n" for name, value in lines.items() if value))


def _document(info: "ModelInfo") -> dict[str, Any]:
    return asdict(info) | {"folder": str(info.folder)}
