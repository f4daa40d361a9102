"""The models there are to choose from: on this machine, and on the servers that have a name.

Keep: what is wrong with a model or a server becomes the words about it; nothing is raised,
loaded or downloaded.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from chatapp.engine import folder
from chatapp.engine.description import describe
from chatapp.engine.errors import ModelError
from chatapp.engine.folder import BUNDLED, find_model
from chatapp.engine.remote import served_models
from chatapp.engine.servers import SERVERS, named_servers


@dataclass(frozen=True, slots=True)
class Found:
    """A model: a name that `load_model` takes, and what is known of it in a line."""

    name: str
    about: str


def on_this_machine() -> list[Found]:
    """The bundled model, runs and adapters, and what the hub's cache holds."""
    return [Found(name, _about(name)) for name in folder.local_models()]


def on_servers() -> Iterator[Found]:
    """The models of the servers with a name; each is asked, which may take seconds."""
    try:
        servers = named_servers()
    except ModelError as error:
        yield Found(SERVERS, str(error))
        return
    for name, server in servers.items():
        try:
            models = served_models(server)
        except ModelError as error:
            yield Found(name, str(error))
            continue
        for model in models:
            if server.model in ("", model.name):
                context = server.context or model.context
                about = f"server · {server.url}" + (f" · {context:,} tokens" if context else "")
                yield Found(f"{name}#{model.name}", about)


def _about(name: str) -> str:
    if name != BUNDLED and not os.path.isdir(name):
        return "hub"
    try:
        files = find_model(name)
        info = describe(files)
    except ModelError as error:
        return str(error)
    kind = BUNDLED if name == BUNDLED else "adapter" if files.is_adapter else "folder"
    facts = (
        kind,
        f"{info.parameters:,} parameters",
        f"{info.context:,} tokens",
        info.template or "no template of its own",
    )
    return " · ".join(facts)
