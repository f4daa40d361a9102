"""`chatapp models get` and `remove`: downloads and deletes models."""

import shlex
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from chatapp.commands import options as shared
from chatapp.commands.console import complain, interruptible, progress, write, write_json
from chatapp.common.userfiles import UserError


def get(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A short name or a hub id; without it, the short names are listed.",
            show_default=False,
            autocompletion=shared.known,
        ),
    ] = None,
    as_json: shared.JsonOption = False,
) -> None:
    """Download a model, or what is missing of it."""
    from chatapp.engine.models.fetching import fetch

    if name is None:
        _list_known(as_json=as_json)
        return
    with (
        interruptible("interrupted; run the same command again to continue"),
        progress(name, of_bytes=True) as show,
    ):
        model = fetch(name, say=complain, progress=show)
    if as_json:
        write_json({"name": name, **model.document()})
    else:
        write(f"{name} is in {model.folder}\nchat with it: chatapp --model {shlex.quote(name)}\n")


def remove(
    name: Annotated[
        str,
        typer.Argument(
            help="The name of a model that `models get` downloaded.", autocompletion=shared.fetched
        ),
    ],
    yes: shared.YesOption = False,
) -> None:
    """Delete a model that `models get` has downloaded, and nothing else."""
    from chatapp.common.userfiles import size_in_words
    from chatapp.engine.models import fetching

    model = fetching.find_fetched(name)
    if model is not None and not yes:
        if not sys.stdin.isatty():
            raise UserError("to remove a model, confirm with --yes")
        if not typer.confirm(f"Remove {name}, {size_in_words(model.bytes)}?", err=True):
            complain("nothing was removed")
            raise typer.Exit(1)
    complain(f"removed {name}, freeing {size_in_words(fetching.remove(name))}")


def _list_known(*, as_json: bool) -> None:
    """The models with a short name, each with its purpose and what it would need here."""
    from chatapp.common.userfiles import size_in_words
    from chatapp.engine.models.known_models import known_models
    from chatapp.tasks.evaluation.speed import estimate

    models = known_models().values()
    estimates = estimate(models)
    if as_json:
        write_json(
            [
                {
                    "name": model.name,
                    "hub": model.hub,
                    "bytes": model.bytes,
                    "is_estimate": model.is_estimate,
                    "licence": model.licence,
                    "purpose": model.purpose,
                    "estimate": asdict(estimates[model.name]),
                    "package": model.package.requirement if model.package else None,
                    "package_bytes": model.package.bytes if model.package else None,
                }
                for model in models
            ]
        )
        return
    width = max(len(model.size) for model in models)
    longest = max(len(model.name) for model in models)
    for model in models:
        here = estimates[model.name]
        needs = f"{size_in_words(here.memory):>8} {here.speed:4.0f} tokens/s {here.precision:7}"
        facts = f"{model.size:<{width}}  {needs}  {model.licence:18}  {model.purpose}"
        write(f"{model.name:<{longest}}  {facts}\n")
    complain(
        "memory, and tokens per second at most, are estimates from a model's shape and the speed "
        "of this machine's memory, measured now; `chatapp bench` measures a model"
    )
