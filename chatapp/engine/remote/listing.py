"""Which models a server has, and how long their windows are.

Keep: a server is asked, never guessed about; what it does not give stays unknown.
"""

from dataclasses import dataclass
from typing import Any

from chatapp.engine.errors import ModelError
from chatapp.engine.remote.chunks import token_count
from chatapp.engine.remote.http import get_json, nonsense
from chatapp.engine.servers import Server


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a server has. context: its window in tokens; 0 where it is not given."""

    name: str
    context: int = 0


def served_models(server: Server) -> list[ServedModel]:
    """What a server has, in its own order. Raises ModelError in words."""
    document = get_json(server, f"{server.url}/models")
    rows = document.get("data") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise nonsense(server, "its list of models is none")
    return [
        ServedModel(row["id"], _context(row))
        for row in rows
        if isinstance(row, dict) and isinstance(row.get("id"), str)
    ]


def context_of_llama_cpp(server: Server) -> int:
    """The window that llama.cpp's own server gives at an address of its own; 0 elsewhere."""
    try:
        document = get_json(server, f"{server.url.removesuffix('/v1')}/props")
    except ModelError:
        return 0
    settings = document.get("default_generation_settings") if isinstance(document, dict) else None
    return token_count(settings.get("n_ctx")) if isinstance(settings, dict) else 0


def _context(row: dict[str, Any]) -> int:
    """The window in a row of the list, where vLLM or llama-cpp-python puts it; 0 without."""
    meta = row.get("meta")
    in_meta = meta.get("n_ctx") if isinstance(meta, dict) else 0
    return token_count(row.get("max_model_len")) or token_count(in_meta)
