"""The HTTP server: its paths, who may use it, and how its errors look.

Invariant: a mistake of a client is an answer of 400 or more and below 500, in OpenAI's form, and
contains no path of this machine. Nobody without the key gets more than /health where there is one.
"""

import asyncio
import hmac
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from chatapp import __version__
from chatapp.api import bodies
from chatapp.api.answers import Document, error
from chatapp.api.description import describe
from chatapp.api.prompts import BadRequestError
from chatapp.api.responses import ResponseBody
from chatapp.api.service import Service
from chatapp.api.worker import BusyError, ModelFailedError
from chatapp.common.unforeseen import describe_unforeseen
from chatapp.common.userfiles import UserError
from chatapp.engine.backends.remote.server import host_of

LARGEST_BODY = 16 * 2**20
_RETRY_SECONDS = "1"
_INVALID = "invalid_request_error"

_log = logging.getLogger("chatapp.api")

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_Body = TypeVar("_Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use the server.

    hosts: the names of this machine; empty allows any. key: "" needs none. origins: of web pages.
    """

    hosts: frozenset[str]
    key: str = ""
    origins: frozenset[str] = frozenset()


class Server:
    """Serves models by their names."""

    def __init__(self, services: dict[str, Service], access: Access) -> None:
        self._services, self._access = services, access
        self._started = int(time.time())
        self._description = json.dumps(describe())

    def app(self) -> web.Application:
        """The application, with every path also without /v1."""
        app = web.Application(client_max_size=LARGEST_BODY, middlewares=[self._guard])
        answers: list[tuple[str, str, _Handler]] = [
            ("GET", "/models", self._models),
            ("GET", "/models/{name:.+}", self._model),
            ("POST", "/completions", self._completions),
            ("POST", "/chat/completions", self._chat),
            ("POST", "/responses", self._responses),
            ("POST", "/embeddings", self._embeddings),
            ("POST", "/tokenize", self._tokenize),
            ("POST", "/detokenize", self._detokenize),
            ("GET", "/tokenizer_info", self._tokenizer_info),
            ("GET", "/health", self._health),
            ("GET", "/openapi.json", self._openapi),
        ]
        for method, path, handler in answers:
            app.router.add_route(method, path, handler)
            app.router.add_route(method, f"/v1{path}", handler)
        return app

    # Access and errors

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        started = time.monotonic()
        origin = request.headers.get("Origin")
        if (refusal := self._refusal(request, origin)) is not None:
            response: web.StreamResponse = refusal
        elif request.method == "OPTIONS":
            response = web.Response(status=204)
        else:
            response = await self._answered(request, handler)
        if not response.prepared and origin in self._access.origins:
            response.headers.update(_cors(str(origin)))
        _log.info(
            "%s %s %s %.3f s",
            request.method,
            _known_path(request),
            response.status,
            time.monotonic() - started,
        )
        return response

    def _refusal(self, request: web.Request, origin: str | None) -> web.Response | None:
        try:
            host = host_of(request.host)
        except ValueError:
            return _failed(400, "the request has no valid Host header")
        if self._access.hosts and host not in self._access.hosts:
            return _failed(403, "this server does not use that host name")
        if origin is not None and origin not in self._access.origins:
            return _failed(403, "pages of that origin may not use this server")
        is_open = request.method == "OPTIONS" or request.path in ("/health", "/v1/health")
        if self._access.key and not is_open:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
            if not hmac.compare_digest(given.encode("utf-8", "replace"), self._access.key.encode()):
                return _failed(401, "the API key is missing or wrong", "invalid_api_key")
        return None

    async def _answered(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except BadRequestError as mistake:
            status = 404 if mistake.code == "model_not_found" else 400
            return _failed(status, str(mistake), mistake.code, mistake.param)
        except (UserError, ValueError) as mistake:
            return _failed(400, str(mistake))
        except BusyError:
            response = _failed(503, "the server is busy; try again", "busy")
            response.headers["Retry-After"] = _RETRY_SECONDS
            return response
        except web.HTTPRequestEntityTooLarge:
            return _failed(413, f"the request has more than {LARGEST_BODY:,} bytes")
        except web.HTTPException as refused:
            return _failed(
                refused.status, f"{request.method} is not possible here: {refused.reason}"
            )
        except ModelFailedError as failure:
            return _failed(500, str(failure), "internal_error")
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as failure:
            _log.error("%s", describe_unforeseen(failure))
            return _failed(500, "the server has failed; its log says why", "internal_error")

    async def _read(self, request: web.Request, kind: type[_Body]) -> _Body:
        """The request's body. Raises BadRequestError."""
        try:
            document = json.loads((await request.read()).decode())
        except (ValueError, RecursionError):
            raise BadRequestError("the body is not JSON in UTF-8") from None
        if not isinstance(document, dict):
            raise BadRequestError("the body is not a JSON object")
        try:
            return kind.model_validate(document)
        except ValidationError as problem:
            first = problem.errors(include_url=False, include_input=False)[0]
            param = ".".join(str(part) for part in first["loc"])
            raise BadRequestError(f"{param or 'the body'}: {first['msg']}", param or None) from None

    def _service(self, name: str | None) -> Service:
        """The model with a name; the first one if there is none in the request."""
        if name is None:
            return next(iter(self._services.values()))
        if name not in self._services:
            known = ", ".join(self._services)
            raise BadRequestError(
                f"there is no model {name[:200]!r} here, only {known}", "model", "model_not_found"
            )
        return self._services[name]

    # Answers

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request, bodies.CompletionBody)
        service = self._service(body.model)
        if body.stream:
            return await _streamed(request, await service.stream_completion(body))
        return web.json_response(await service.complete(body))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request, bodies.ChatBody)
        service = self._service(body.model)
        if body.stream:
            return await _streamed(request, await service.stream_chat(body))
        return web.json_response(await service.chat(body))

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request, ResponseBody)
        service = self._service(body.model)
        if body.stream:
            return await _streamed(request, await service.stream_response(body), is_typed=True)
        return web.json_response(await service.respond(body))

    async def _embeddings(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request, bodies.EmbeddingBody)
        return web.json_response(await self._service(body.model).embed(body))

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request, bodies.TokenizeBody)
        return web.json_response(await asyncio.to_thread(self._service(body.model).tokenize, body))

    async def _detokenize(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request, bodies.DetokenizeBody)
        return web.json_response(
            await asyncio.to_thread(self._service(body.model).detokenize, body)
        )

    async def _tokenizer_info(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self._service(request.query.get("model")).tokenizer_info())

    async def _models(self, request: web.Request) -> web.StreamResponse:
        data = [self._described(name) for name in self._services]
        return web.json_response({"object": "list", "data": data})

    async def _model(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        self._service(name)
        return web.json_response(self._described(name))

    def _described(self, name: str) -> dict[str, Any]:
        model = self._services[name].model
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "chatapp",
            "max_model_len": model.context,
        }

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ok", "version": __version__})

    async def _openapi(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=self._description, content_type="application/json")


async def _streamed(
    request: web.Request, chunks: AsyncGenerator[Document], *, is_typed: bool = False
) -> web.StreamResponse:
    """Server-sent events. A mistake found before the first one is an ordinary answer.

    is_typed: each event says its type, and the last one is no word, as in responses.
    """
    try:
        first = await anext(chunks)
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        await response.prepare(request)
        await response.write(_event(first))
        try:
            async for chunk in chunks:
                await response.write(_event(chunk))
        except (BadRequestError, ModelFailedError) as failure:
            await response.write(_event(error(str(failure), "server_error")))
        if not is_typed:
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response
    finally:
        await chunks.aclose()


def _event(chunk: Mapping[str, Any]) -> bytes:
    kind = f"event: {chunk['type']}\n" if "type" in chunk else ""
    return f"{kind}data: {json.dumps(chunk)}\n\n".encode()


def _failed(
    status: int, message: str, code: str | None = None, param: str | None = None
) -> web.Response:
    kind = _INVALID if status < 500 else "server_error"
    return web.json_response(error(message, kind, param, code), status=status)


def _cors(origin: str) -> dict[str, str]:
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Headers": "Authorization, Content-Type",
        "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
        "Vary": "Origin",
    }


def _known_path(request: web.Request) -> str:
    """The path as this server defines it, so that no foreign text is in the log."""
    resource = request.match_info.route.resource
    return "-" if resource is None else resource.canonical
