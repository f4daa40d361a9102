"""The HTTP server: its paths, who may use it, and how its errors look."""

import asyncio
import hmac
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from chatapp import __version__
from chatapp.common.foreign import parse_json
from chatapp.common.unforeseen import describe_unforeseen
from chatapp.common.userfiles import UserError
from chatapp.common.validation import first_fault
from chatapp.engine.backends.remote.http import host_of
from chatapp.server import bodies
from chatapp.server.inspecting import tokenizer_info
from chatapp.server.prompts import BadRequestError
from chatapp.server.service import Document, Service
from chatapp.server.worker import BusyError, ModelFailedError

LARGEST_BODY = 16 * 2**20
_LARGE_BODY = 2**16
_MOST_MARKS = {"[": 2**18, "{": 2**18, ":": 2**18, ",": 2**21}
"""Of each in a body: Python makes its values while nobody else runs."""
_RETRY_SECONDS = "1"
SILENCE = 60.0
"""Seconds that a client may take to send a request, or to read more of a reply, before its
connection is closed.
"""

BACKLOG = 1024
"""Connections that the system holds until the server takes them. Beyond that some stay half-open,
unknown to the server, until their clients give up.
"""

MOST_BYTES = 64 * LARGEST_BODY
"""The bodies of all requests that are held at a time."""

_IGNORED, _LEFT_OUT = "X-Ignored-Keys", "X-Left-Out"
"""The headers that name the keys of a request that nothing has read, and the messages of a chat for
which the window has no room."""

_MOST_NAMES, _LONGEST_NAME = 20, 60
"""Keys that it names, and characters of one."""

_LEFT = 499
"""The status in the log of a request whose client has left."""

_INVALID = "invalid_request_error"

_log = logging.getLogger("chatapp.server")

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use the server.

    hosts: the names of this machine; empty allows any. key: "" needs none. origins: of web pages.
    inside: whether strangers, which are other machines and web pages, may look inside a model and
    change it.
    """

    hosts: frozenset[str]
    key: str = ""
    origins: frozenset[str] = frozenset()
    inside: bool = False


class APIServer:
    """Serves models by their names."""

    def __init__(self, models: dict[str, Service], access: Access) -> None:
        self._models, self._access = models, access
        self._started, self._bytes = int(time.time()), 0
        self._reader = ThreadPoolExecutor(1)
        self.gets: dict[str, _Handler] = {
            "/models": self._list,
            "/models/{name}": self._model,
            "/tokenizer_info": self._tokenizer_info,
            "/health": self._health,
        }
        self._description = json.dumps(bodies.describe(self.gets))

    def app(self) -> web.Application:
        """The application, with every path also without /v1."""
        app = web.Application(client_max_size=LARGEST_BODY, middlewares=[self._guard])
        app.on_response_prepare.append(self._let_page_read)
        answers = [
            *(("POST", path, self._answering(path)) for path in bodies.POSTS),
            *(("GET", path.replace("}", ":.+}"), get) for path, get in self.gets.items()),
            ("GET", "/openapi.json", self._openapi),
        ]
        for method, path, handler in answers:
            app.router.add_route(method, path, handler)
            app.router.add_route(method, f"/v1{path}", handler)
        return app

    # Access and errors

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        started, status = time.monotonic(), _LEFT
        try:
            response = self._refusal(request) or await self._answered(request, handler)
            status = response.status
        except ConnectionError:  # the client has left: aiohttp would log where that was noticed
            response = web.Response(status=_LEFT)
        finally:
            seconds = time.monotonic() - started
            _log.info("%s %s %s %.3f s", request.method, _known_path(request), status, seconds)
        return response

    async def _let_page_read(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let a page of a known origin read an answer, also one that is streamed."""
        if (origin := request.headers.get("Origin")) in self._access.origins:
            wanted = request.headers.get("Access-Control-Request-Headers")
            response.headers.update(_cors(str(origin), wanted))

    def _refusal(self, request: web.Request) -> web.Response | None:
        origin = request.headers.get("Origin")
        try:
            host = host_of(request.host)
        except ValueError:
            return _failed(400, "the request has no valid Host header")
        if self._access.hosts and host not in self._access.hosts:
            return _failed(403, "this server does not use that host name")
        if origin is not None and origin not in self._access.origins:
            return _failed(403, "pages of that origin may not use this server")
        is_open = request.method == "OPTIONS" or request.path in ("/health", "/v1/health")
        key = self._access.key
        if key and not is_open:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
            if not hmac.compare_digest(given.encode("utf-8", "replace"), key.encode()):
                return _failed(401, "the API key is missing or wrong", "invalid_api_key")
        return None

    async def _answered(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if request.method == "OPTIONS":
            return web.Response(status=204)
        size = request.content_length or 0
        if "Content-Encoding" in request.headers or "Transfer-Encoding" in request.headers:
            size = LARGEST_BODY  # it may have as much in the end
        self._bytes += size
        try:
            if self._bytes > MOST_BYTES:
                raise BusyError
            return await handler(request)
        except BadRequestError as mistake:
            status = 404 if mistake.code == "model_not_found" else 400
            return _failed(status, str(mistake), mistake.code, mistake.param)
        except (UserError, ValueError) as mistake:
            return _failed(400, str(mistake))
        except RecursionError:
            return _failed(400, "the request has too many lists and objects within each other")
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
        finally:
            self._bytes -= size

    async def _read(self, request: web.Request, path: str) -> bodies.Body:
        """The request's body, on a thread: a large one holds up no other reply.

        Raises BadRequestError, web.HTTPException.
        """
        try:
            async with asyncio.timeout(SILENCE):
                data = await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout from None
        except web.RequestPayloadError:
            raise BadRequestError("the body is not what its headers say") from None
        # Reading a large one lets nothing else run for a second: one after the other.
        reader = self._reader if len(data) > _LARGE_BODY else None
        return await asyncio.get_running_loop().run_in_executor(reader, _body_of, data, path)

    def _service(self, name: str | None) -> Service:
        """The model with a name; the first one if there is none in the request."""
        if name is None:
            return next(iter(self._models.values()))
        if name not in self._models:
            known = ", ".join(self._models)
            raise BadRequestError(
                f"there is no model {name[:200]!r} here, only {known}", "model", "model_not_found"
            )
        return self._models[name]

    # Answers

    def _answering(self, path: str) -> _Handler:
        """Answers requests to a path."""

        async def answer(request: web.Request) -> web.StreamResponse:
            body = await self._read(request, path)
            is_stranger = not self._access.hosts or "Origin" in request.headers
            if is_stranger and not self._access.inside and bodies.opens_model(body):
                return _failed(
                    403,
                    "only programs on this machine may look inside the model or change it; "
                    "`chatapp api --inside` lets in others",
                )
            service, headers = self._service(body.model), {}
            if ignored := await asyncio.to_thread(_names, service.ignored_keys(body)):
                headers[_IGNORED] = ignored
                _log.info("%s: ignored keys: %s", path, ignored)
            answer = await service.answer(body)
            if isinstance(answer, AsyncGenerator):
                return await _streamed(request, answer, headers)
            headers |= _loss(request, answer)
            text = await asyncio.to_thread(_encoded, answer)
            return web.Response(text=text, content_type="application/json", headers=headers)

        return answer

    async def _tokenizer_info(self, request: web.Request) -> web.StreamResponse:
        service = self._service(request.query.get("model"))
        return web.json_response(tokenizer_info(service.model))

    async def _list(self, request: web.Request) -> web.StreamResponse:
        data = [self._described(name) for name in self._models]
        return web.json_response({"object": "list", "data": data})

    async def _model(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        self._service(name)
        return web.json_response(self._described(name))

    def _described(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "chatapp",
            "max_model_len": self._models[name].model.context,
        }

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ok", "version": __version__})

    async def _openapi(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=self._description, content_type="application/json")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _names(keys: list[str]) -> str:
    """Names of keys for a header and the log: foreign text, of which little is shown."""
    shown = [re.sub(r"[^\w.-]", "?", key, flags=re.ASCII)[:_LONGEST_NAME] for key in keys]
    more = [f"and {len(keys) - _MOST_NAMES} more"] if len(keys) > _MOST_NAMES else []
    return ", ".join(shown[:_MOST_NAMES] + more)


def _body_of(data: bytes, path: str) -> bodies.Body:
    """Raises BadRequestError."""
    for mark, most in _MOST_MARKS.items():
        if data.count(mark.encode()) > most:
            raise BadRequestError(f"the body has more than {most:,} of {mark!r}")
    try:
        document = parse_json(data.decode(), parse_constant=_refuse_constant)
    except ValueError:
        raise BadRequestError("the body is not JSON in UTF-8") from None
    if not isinstance(document, dict):
        raise BadRequestError("the body is not a JSON object")
    if refused := bodies.refused_key(path, document):
        raise BadRequestError(f"{refused} is not supported here", refused, "unsupported_parameter")
    try:
        return (kind := bodies.POSTS[path]).model_validate(document)
    except ValidationError as problem:
        location, sentence = first_fault(kind, problem, "request")
        param = ".".join(map(str, location))
        # The value is a client's text, and the log has none.
        _, is_wrong, expected = sentence.rpartition(", expected ")
        sentence = f"is wrong: expected {expected}" if is_wrong else sentence
        raise BadRequestError(f"{param or 'the body'} {sentence}", param or None) from None


def _encoded(document: Document) -> str:
    """A document as JSON. Each part of its lists by itself: other threads run in between."""
    parts = (
        f"{json.dumps(key)}: "
        + (
            f"[{', '.join(map(json.dumps, value))}]"
            if isinstance(value, list)
            else json.dumps(value)
        )
        for key, value in document.items()
    )
    return f"{{{', '.join(parts)}}}"


def _loss(request: web.Request, document: Document) -> dict[str, str]:
    """The header for an answer to a part of a chat, which the log has too."""
    if left_out := document.get("left_out"):
        _log.info("%s: left out %s", _known_path(request), left_out)
    return {_LEFT_OUT: left_out} if left_out else {}


async def _write(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Send more of an answer. Raises ConnectionError for a client that no longer reads."""
    try:
        async with asyncio.timeout(SILENCE):
            await response.write(data)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client reads no more") from None


async def _streamed(
    request: web.Request, chunks: AsyncGenerator[Document], headers: dict[str, str]
) -> web.StreamResponse:
    """Server-sent events. A mistake found before the first one is an ordinary answer."""
    try:
        first = await anext(chunks)
        headers |= _loss(request, first)
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"} | headers
        )
        await response.prepare(request)
        await _write(request, response, _event(first))
        try:
            async for chunk in chunks:
                await _write(request, response, _event(chunk))
        except (BadRequestError, ModelFailedError) as failure:
            await _write(request, response, _event(_error(str(failure), "server_error")))
        await _write(request, response, b"data: [DONE]\n\n")
        await response.write_eof()
        return response
    finally:
        await chunks.aclose()


def _event(chunk: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(chunk)}\n\n".encode()


def _error(
    message: str, type: str, param: str | None = None, code: str | None = None
) -> dict[str, Document]:
    """An error as clients expect it."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def _failed(
    status: int, message: str, code: str | None = None, param: str | None = None
) -> web.Response:
    kind = _INVALID if status < 500 else "server_error"
    return web.json_response(_error(message, kind, param, code), status=status)


def _cors(origin: str, wanted: str | None) -> dict[str, str]:
    """wanted: the headers that the page would send; clients send more than the protocol has."""
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Headers": wanted or "Authorization, Content-Type",
        "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
        "Access-Control-Expose-Headers": f"{_IGNORED}, {_LEFT_OUT}",
        "Vary": "Origin",
    }


def _known_path(request: web.Request) -> str:
    """The path as this server defines it, so that no foreign text is in the log."""
    resource = request.match_info.route.resource
    return "-" if resource is None else resource.canonical
