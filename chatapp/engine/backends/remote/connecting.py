"""From a server to a model on it: finds its models, their windows and the protocol.

Invariant: the server's abilities are determined before any text of the user is sent, so no message
is sent twice. Windows are never guessed from names; what a server does not report stays unknown.
"""

from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from chatapp.common.paths import SERVERS
from chatapp.engine.backends.remote.chat import RemoteChatModel
from chatapp.engine.backends.remote.completions import RemoteModel
from chatapp.engine.backends.remote.http import get_json, has_path, nonsense
from chatapp.engine.backends.remote.server import Server
from chatapp.engine.backends.remote.stream import token_count
from chatapp.engine.errors import ModelError


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model on a server. context: its window in tokens; 0 if unknown."""

    name: str
    context: int = 0


def served_models(server: Server) -> list[ServedModel]:
    """The models on a server, in its order. Raises ModelError."""
    document = get_json(server, f"{server.url}/models")
    rows = document.get("data") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise nonsense(server, "its list of models is not a list")
    return [
        ServedModel(row["id"], _context(row))
        for row in rows
        if isinstance(row, dict) and isinstance(row.get("id"), str)
    ]


def context_of_llama_cpp(server: Server) -> int:
    """The window that llama.cpp's own server reports at its own path; 0 for other servers."""
    try:
        document = get_json(server, f"{server.url.removesuffix('/v1')}/props")
    except ModelError:
        return 0
    settings = document.get("default_generation_settings") if isinstance(document, dict) else None
    return token_count(settings.get("n_ctx")) if isinstance(settings, dict) else 0


def _context(row: dict[str, Any]) -> int:
    """The window in an entry of the list, by the keys of vLLM and llama-cpp-python; 0 if absent."""
    meta = row.get("meta")
    in_meta = meta.get("n_ctx") if isinstance(meta, dict) else 0
    return token_count(row.get("max_model_len")) or token_count(in_meta)


_ASSUMED_CONTEXT = 2048
"""The window if neither the server nor the settings give one: even old and small models have it."""


def connect(server: Server, *, name: str) -> RemoteModel:
    """Connect to a model on a server. Raises ModelError.

    name: the user's name for it.
    """
    remarks = []
    if server.key and server.url.startswith("http://") and not server.is_here:
        remarks.append(
            f"The key is sent to {urlsplit(server.url).hostname} unencrypted; use https."
        )
    served = _chosen(server)
    context = server.context or served.context or context_of_llama_cpp(server)
    if not context:
        context = _ASSUMED_CONTEXT
        remarks.append(
            f"The server does not report its context window; {context:,} tokens are "
            f"assumed unless {SERVERS} says otherwise."
        )
    chosen = replace(server, model=served.name, context=context)
    kind = RemoteChatModel if _converses(chosen) else RemoteModel
    full = name if "#" in name else f"{name}#{served.name}"
    return kind(chosen, name=full, context=context, remark=" ".join(remarks))


def _chosen(server: Server) -> ServedModel:
    """The model that the server address selects. Raises ModelError."""
    models = {model.name: model for model in served_models(server)}
    names = ", ".join(models)
    if not models:
        raise ModelError(f"{server.url}: the server has no model")
    if server.model and server.model not in models:
        raise ModelError(f"{server.url}: there is no model {server.model!r}; it has {names}")
    if not server.model and len(models) > 1:
        raise ModelError(
            f"{server.url}: the server has several models; put one of them after a #: {names}"
        )
    return models[server.model or names]


def _converses(server: Server) -> bool:
    """Whether to use the chat protocol. Raises ModelError where that is the only choice but absent.

    The probe is a request that no server can fulfil, a reply to a number: llama-cpp-python replies
    to an empty one, at length.
    """
    if server.protocol != "auto":
        return server.protocol == "chat"
    body = {"model": server.model, "max_tokens": 1}
    if has_path(server, "chat/completions", body | {"messages": 0}):
        return True
    if not has_path(server, "completions", body | {"prompt": 0}):
        raise ModelError(
            f"{server.url}: the server offers neither chat nor completions of OpenAI's API"
        )
    return False
