"""The models to choose from: on this machine, on named servers, and downloadable."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chatapp.common.paths import SERVERS
from chatapp.common.userfiles import size_in_words
from chatapp.engine.backends.remote.http import Client
from chatapp.engine.backends.remote.remote_model import served_models
from chatapp.engine.errors import ModelError
from chatapp.engine.models import resolving
from chatapp.engine.models.description import OWN, ModelInfo, bytes_on_disk, describe, memory_needed
from chatapp.engine.models.fetching import fetched_models, find_fetched
from chatapp.engine.models.known_models import KnownModel, known_models
from chatapp.engine.models.loading import usual_precision
from chatapp.engine.models.resolving import (
    BUNDLED,
    find_local_model,
    folder_here,
    is_of_other_program,
    local_folder,
    named_servers,
)


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model: a name that `load_model` takes, and the known facts.

    origin: bundled, folder, adapter, hub, ollama, lmstudio, or server; "" when it is missing.
    bytes: on disk; None on a server. memory: estimated bytes here; None if unknown. server: the
    address of its server. remark: a fault or another note.
    """

    name: str
    origin: str
    bytes: int | None = None
    info: ModelInfo | None = None
    memory: int | None = None
    server: str = ""
    remark: str = ""

    @property
    def about(self) -> str:
        """All known facts, on one line."""
        facts = [self.origin] if self.origin else []
        if self.bytes is not None:
            takes = f", {size_in_words(self.memory)} in memory" if self.memory else ""
            facts.append(f"{size_in_words(self.bytes)}{takes}")
        if self.info is not None:
            facts.append(template_in_words(self.info.template))
            if self.info.context:
                facts.append(f"{self.info.context:,} tokens")
            facts.append(f"{self.info.parameters:,} parameters")
        return " · ".join(filter(None, (*facts, self.server, self.remark)))


def template_in_words(template: str) -> str:
    """The template for a chat with a model, in words."""
    return {"": "plain", OWN: "own template"}.get(template, f"template {template}")


def on_this_machine(precision: str = "auto", device: str = "auto") -> list[ListedModel]:
    """The models here, bundled and own, of the hub's cache and of other programs.

    precision, device: of the planned use.
    """
    return [_list_model(name, precision, device) for name in resolving.local_models()]


def unfinished() -> list[ListedModel]:
    """Unfinished downloads of `models get`."""
    try:
        models = fetched_models()
    except ModelError as error:
        return [ListedModel("models get", "", remark=str(error))]
    return [
        ListedModel(model.name, "", remark=f"is incomplete; `models get {model.name}` continues")
        for model in models
        if not model.is_whole
    ]


def servers() -> list[ListedModel]:
    """The named servers; none is contacted."""
    try:
        named = named_servers()
    except ModelError as error:
        return [ListedModel(SERVERS, "server", remark=str(error))]
    return [ListedModel(name, "server", server=server.url) for name, server in named.items()]


def on_servers() -> Iterator[ListedModel]:
    """The models of the named servers; each is contacted, which may take seconds."""
    try:
        named = named_servers()
    except ModelError as error:
        yield ListedModel(SERVERS, "server", remark=str(error))
        return
    for name, server in named.items():
        try:
            models = served_models(Client(server))
        except ModelError as error:
            yield ListedModel(name, "server", remark=str(error))
            continue
        for model, window in models.items():
            if server.model in ("", model):
                context = server.context or window
                words = f"{context:,} tokens" if context else ""
                yield ListedModel(f"{name}#{model}", "server", server=server.url, remark=words)


def to_get() -> list[KnownModel]:
    """The models with a short name that are missing or incomplete here."""
    return [model for name, model in known_models().items() if not is_here(name)]


def is_here(name: str) -> bool:
    """Whether all of a model with a short name is on this machine."""
    try:
        fetched = find_fetched(name)
        return local_folder(name) is not None and (fetched is None or fetched.is_whole)
    except (ModelError, OSError):
        return False


def _list_model(name: str, precision: str, device: str) -> ListedModel:
    """A model of this machine, with any fault as its remark."""
    origin, size = "", None
    try:
        path = folder_here(name)
        origin, size = _origin(name, path), bytes_on_disk(path)
        files = find_local_model(name)
        info = describe(files)
        chosen = usual_precision(files, device) if precision == "auto" else precision
    except (ModelError, OSError) as error:
        remark = str(error).removeprefix(f"{name}: ")  # the name is shown before it already
        return ListedModel(name, origin, size, remark=remark)
    if files.is_adapter:
        origin = "adapter"
    return ListedModel(name, origin, size, info, memory_needed(info, chosen))


def _origin(name: str, path: Path) -> str:
    if name == BUNDLED:
        return BUNDLED
    if is_of_other_program(name):
        return name.partition(":")[0]
    return "hub" if path.parent.name == "snapshots" else "folder"
