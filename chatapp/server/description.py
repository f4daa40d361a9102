"""The OpenAPI description of the server, from the requests' own types."""

from typing import Any

from pydantic.json_schema import models_json_schema

from chatapp import __version__
from chatapp.server import bodies

_POSTS: dict[str, type[bodies.Body]] = {
    "/completions": bodies.CompletionBody,
    "/chat/completions": bodies.ChatBody,
    "/embeddings": bodies.EmbeddingBody,
    "/tokenize": bodies.TokenizeBody,
    "/detokenize": bodies.DetokenizeBody,
}
_GETS = ("/models", "/tokenizer_info", "/health")
_ANSWERS = {
    "200": {"description": "The answer"},
    "400": {"description": "A mistake in the request"},
    "401": {"description": "The API key is missing or wrong"},
    "403": {"description": "This host or origin may not use the server"},
    "404": {"description": "There is no such model"},
    "413": {"description": "The request is too large"},
    "503": {"description": "Too many requests wait"},
}


def describe() -> dict[str, Any]:
    """The description as JSON data."""
    kinds = [(kind, "validation") for kind in _POSTS.values()]
    names, schemas = models_json_schema(kinds, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    paths: dict[str, Any] = {}
    for path, kind in _POSTS.items():
        content = {"application/json": {"schema": names[kind, "validation"]}}
        body = {"required": True, "content": content}
        paths[f"/v1{path}"] = {"post": {"requestBody": body, "responses": _ANSWERS}}
    for path in _GETS:
        paths[f"/v1{path}"] = {"get": {"responses": _ANSWERS}}
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    paths["/v1/models/{name}"] = {"get": {"parameters": [name], "responses": _ANSWERS}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "chatapp", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas.get("$defs", {})},
    }
