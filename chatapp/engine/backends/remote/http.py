"""Addresses of servers, requests to them, several at once if needed, and sentences on failures.

The user's names for servers are in the file servers.toml in the folder of the settings, one table
each:

    [cluster]
    url      = "https://gpu7.example/v1"
    model    = "gpt2-xl"        # if the server has several
    key      = "CLUSTER_KEY"    # the environment variable that holds the key
    context  = 1024             # if the server does not report it
    protocol = "auto"           # auto | chat | completions

Invariants: neither that file nor an address ever contains a key, because both are shown and stored.
The key is sent only to the server's own address and appears in no message and no name. Requests are
taken, and their events yielded, on the caller's thread; when it leaves, all requests end.
"""

import asyncio
import base64
import ipaddress
import os
import re
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

from chatapp.common.foreign import parse_json
from chatapp.common.paths import SERVERS
from chatapp.engine.errors import ModelError, first_line
from chatapp.engine.events import Event, Finished
from chatapp.engine.model import ContextOverflow, Generate, Request

if TYPE_CHECKING:
    import httpx2


_SCHEMES = ("http://", "https://")


@dataclass(frozen=True, slots=True)
class Server:
    """The location of a served model.

    url: normalized, see `server_url`. model: its name there; empty for the only one. key: the
    environment variable that holds the key; empty when none is needed. context: the window in
    tokens; 0 if the server reports it. protocol: of chats; "auto" is the chat protocol if the
    server supports it.
    """

    url: str
    model: str = ""
    key: str = ""
    context: int = 0
    protocol: Literal["auto", "chat", "completions"] = "auto"

    @property
    def is_here(self) -> bool:
        """Whether its address is on this machine."""
        return is_loopback(urlsplit(self.url).hostname or "")

    def secret(self) -> str:
        """The key; empty when none is needed. Raises ModelError."""
        if not self.key:
            return ""
        key = os.environ.get(self.key, "").strip()
        if not key:
            raise ModelError(
                f"{self.url}: the environment variable {self.key}, which holds its key, is not set"
            )
        if not (key.isascii() and key.isprintable()):
            raise ModelError(f"{self.url}: the value of the variable {self.key} is not a valid key")
        return key

    def masked(self, text: str) -> str:
        """Replace the key in a text of the server by its variable's name: plain, reversed, and
        either in base64 or percent-encoded.
        """
        key = os.environ.get(self.key, "").strip() if self.key else ""
        for spelling in (key, key[::-1]) if key else ():
            in_base64 = "|".join(map(re.escape, _in_base64(spelling)))
            by_per_cent = "".join(
                f"(?:{re.escape(letter)}|%{ord(letter):02x})" for letter in spelling
            )
            pattern = f"{by_per_cent}|{in_base64}" if in_base64 else by_per_cent
            text = re.sub(pattern, self.key, text, flags=re.IGNORECASE)
        return text


_SHORTEST = 6
"""Characters of base64 that count as part of a key."""


def _in_base64(text: str) -> list[str]:
    """The forms of a text in base64, for any offset in the encoded text."""
    spellings: list[str] = []
    for before in range(3):
        data = bytes(before) + text.encode()
        # The first and the last characters also hold bits of their neighbours.
        code = base64.b64encode(data).decode()[(8 * before + 5) // 6 : 8 * len(data) // 6]
        spellings += [code, code.translate(str.maketrans("+/", "-_"))]
    return [spelling for spelling in dict.fromkeys(spellings) if len(spelling) >= _SHORTEST]


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only be this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """The host that a Host header names, without its port. Raises ValueError for one that holds
    more, such as a user's name or a path.
    """
    parts = urlsplit(f"//{header}")
    if parts.netloc != header or "@" in header or parts.port == 0:
        raise ValueError(header)
    return parts.hostname or ""


def is_address(name: str) -> bool:
    """Whether a name is the address of a server."""
    return name.startswith(_SCHEMES)


def server_url(address: str) -> str:
    """Normalize an address: no slash at its end, `/v1` if it has no path.

    Raises ModelError.
    """
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ModelError(f"{address!r}: this is not a server address: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ModelError(
            f"{host}: an address must not contain a key; name the environment variable that "
            f"holds it in {SERVERS}"
        )
    if not is_address(address) or not host or re.search(r"[^!-~]", address) or parts.query:
        raise ModelError(
            f"{address!r}: this is not a server address; expected one like http://localhost:8000/v1"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


Body = dict[str, Any]
"""The body of a request, a JSON object."""

# A long prompt in a long queue may take minutes to its first token. Between two tokens, comments,
# empty events and headers that arrive byte by byte are no sign of life.
_CONNECT_SECONDS, _ANSWER_SECONDS, SILENCE_SECONDS = 5.0, 10.0, 300.0

_POLL_SECONDS = 0.05
"""Interval at which the cancel event is checked while nothing arrives."""

_AHEAD = 64
"""Items that have arrived and wait to be read; then nothing more is read from the server."""

_MOST_ANSWER_BYTES = 64 * 2**20
"""Of the tokens of a text, and of their log-probabilities."""

_BUSY, _MOST_TRIES, _RETRY_SECONDS = 503, 30, 1.0
"""A server whose queue is full is asked again."""

_MOST_BYTES = 2**20
"""Of a response that is no stream: a list of models, or an error."""

NO_PATH = (404, 405, 501)
"""Statuses of a server that does not know a path."""

_NO_WAY = (ValueError, ImportError, OSError)
"""What httpx2 raises for an invalid host name, a proxy, and certificates."""


async def post(
    server: Server, path: str, body: Body, simpler: Callable[[Body, int, str], Body | None]
) -> AsyncGenerator[str]:
    """Post a request and yield the data of its server-sent events. Raises ModelError.

    simpler: maps a refused body, the status and the server's words to the body of another attempt,
    or to None.
    """
    import httpx2

    try:
        async with (
            httpx2.AsyncClient(**_client_options(server, SILENCE_SECONDS)) as client,
            _accepted(client, server, path, body, simpler) as response,
        ):
            async for event in httpx2.EventSource(response):
                if event.data:  # other fields are irrelevant to a client of one stream
                    yield event.data
    except httpx2.SSEError:
        raise nonsense(server, "its response is not an event stream") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, *_NO_WAY) as error:
        raise _unreachable(server, error) from None


@asynccontextmanager
async def _accepted(
    client: "httpx2.AsyncClient",
    server: Server,
    path: str,
    body: Body,
    simpler: Callable[[Body, int, str], Body | None],
) -> "AsyncIterator[httpx2.Response]":
    """The response to a request that the server accepts. Raises ModelError."""
    attempt: Body | None = body
    while attempt is not None:
        async with client.stream("POST", f"{server.url}/{path}", json=attempt) as response:
            if response.status_code == 200:
                yield response
                return
            text = await _beginning(response)
            attempt = simpler(attempt, response.status_code, text)
            if attempt is None:
                raise _refusal(server, response, text)


class Cancelled(Exception):
    """The caller's cancel event was set while waiting for the server."""


class BlockingStream:
    """The items of an asynchronous stream, one at a time, for a synchronous caller.

    Its event loop runs only while an item is awaited, so no thread is needed, and cancelling closes
    the connection at once.
    """

    def __init__(self, server: Server, stream: AsyncGenerator[str]) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._items: asyncio.Queue[str | Exception | None] = asyncio.Queue(_AHEAD)
        self._task = self._loop.create_task(self._pump(stream))
        self._silence = 0.0

    def next(self, cancel: threading.Event) -> str | None:
        """The next item; None after the last. Raises Cancelled, an exception of the stream, and
        ModelError when items have arrived for too long without text of the reply.
        """
        started = time.monotonic()
        item = self._loop.run_until_complete(self._next(cancel, started))
        self._silence += time.monotonic() - started
        return item

    def hear_reply(self) -> None:
        """Record that the last item contained text of the reply: other items are no
        sign of life."""
        self._silence = 0.0

    def close(self) -> None:
        """End the stream and its connection."""
        self._task.cancel()
        self._loop.run_until_complete(asyncio.gather(self._task, return_exceptions=True))
        self._loop.close()

    async def _pump(self, stream: AsyncGenerator[str]) -> None:
        try:
            async with aclosing(stream):
                async for item in stream:
                    await self._items.put(item)
            await self._items.put(None)
        except Exception as error:
            await self._items.put(error)

    async def _next(self, cancel: threading.Event, started: float) -> str | None:
        while not cancel.is_set():
            if self._silence + time.monotonic() - started > SILENCE_SECONDS:
                raise _silent(self._server)
            with suppress(TimeoutError):
                item = await asyncio.wait_for(self._items.get(), _POLL_SECONDS)
                if isinstance(item, Exception):
                    raise item
                return item
        raise Cancelled


def _client_options(server: Server, silence: float) -> dict[str, Any]:
    """Options of the HTTP client for this server. silence: seconds without data that it allows."""
    import httpx2

    key = server.secret()
    return {
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "timeout": httpx2.Timeout(silence, connect=_CONNECT_SECONDS),
        "follow_redirects": False,  # the key is for this address only
        "trust_env": not server.is_here,  # a proxy cannot reach this machine
        "verify": server.url.startswith("https:"),  # loading certificates takes a while
    }


def _answer(
    server: Server, method: str, url: str, body: object = None
) -> "tuple[httpx2.Response, str]":
    """Send a short request; return the response and the beginning of its body. Raises
    ModelError."""

    async def ask() -> "tuple[httpx2.Response, str]":
        async with (
            httpx2.AsyncClient(**_client_options(server, _ANSWER_SECONDS)) as client,
            client.stream(method, url, json=body) as response,
        ):
            return response, await _beginning(response)

    import httpx2

    try:
        return asyncio.run(asyncio.wait_for(ask(), _ANSWER_SECONDS))
    except TimeoutError:
        raise _silent(server) from None
    except (httpx2.HTTPError, httpx2.InvalidURL, *_NO_WAY) as error:
        raise _unreachable(server, error) from None


def has_path(server: Server, path: str, body: Body) -> bool:
    """Whether a server knows a path. Raises ModelError when it cannot be reached.

    body: a request that no server can fulfil, so that the probe costs nothing.
    """
    response, _ = _answer(server, "POST", f"{server.url}/{path}", body)
    return response.status_code not in NO_PATH


def get_json(server: Server, url: str) -> Any:
    """Get a JSON document from the server. Raises ModelError."""
    response, text = _answer(server, "GET", url)
    if len(text) > _MOST_BYTES:
        raise nonsense(server, "its response is too long")
    if response.status_code != 200:
        raise _refusal(server, response, text)
    try:
        return parse_json(text)
    except ValueError:
        raise nonsense(server, "its list of models is not JSON") from None


class RefusedError(ModelError):
    """The server can be reached, but does not do what was requested."""


class JSONClient:
    """Requests to a server whose answers are whole JSON objects, over connections that are kept.

    It may be used from any thread. seconds: how long the server may be silent.
    """

    def __init__(self, server: Server) -> None:
        self.server = server

    @cached_property
    def _client(self) -> "httpx2.Client":
        import httpx2

        return httpx2.Client(**_client_options(self.server, SILENCE_SECONDS))

    def get(self, path: str, seconds: float = _ANSWER_SECONDS) -> dict[str, Any]:
        """Ask the server. path: from its root. Raises ModelError, RefusedError if it refuses."""
        return self._document("GET", path, None, seconds)

    def post(self, path: str, body: Body, seconds: float = _ANSWER_SECONDS) -> dict[str, Any]:
        """Ask the model. path: from the root. Raises ModelError, RefusedError if it refuses."""
        return self._document("POST", path, {"model": self.server.model} | body, seconds)

    def _document(
        self, method: str, path: str, body: Body | None, seconds: float
    ) -> dict[str, Any]:
        import httpx2

        url = self.server.url.removesuffix("/v1") + path
        try:
            for _ in range(_MOST_TRIES):
                with self._client.stream(method, url, json=body, timeout=seconds) as response:
                    text = self._text_of(response)
                if response.status_code != _BUSY:
                    break
                time.sleep(_RETRY_SECONDS)
        except (httpx2.HTTPError, httpx2.InvalidURL, *_NO_WAY) as error:
            raise _unreachable(self.server, error) from None
        if response.status_code != 200:
            raise RefusedError(str(_refusal(self.server, response, text)))
        try:
            document = parse_json(text)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise RefusedError(str(nonsense(self.server, "its answer is not a JSON object")))
        return document

    def _text_of(self, response: "httpx2.Response") -> str:
        """The body of an answer. Raises ModelError for one without an end."""
        body = b""
        for part in response.iter_bytes():
            body += part
            if len(body) > _MOST_ANSWER_BYTES:
                raise nonsense(self.server, "its response is too long")
        return body.decode("utf-8", "replace")


async def _beginning(response: "httpx2.Response") -> str:
    """The body of a response that is no stream, up to the length that a message can use."""
    body = b""
    async for part in response.aiter_bytes():
        body += part
        if len(body) > _MOST_BYTES:
            break
    return body.decode("utf-8", "replace")


def _refusal(server: Server, response: "httpx2.Response", text: str) -> ModelError:
    """The sentence that a server refused a request. text: the body of its response."""
    status = response.status_code
    if status in (401, 403):
        if server.key:
            return ModelError(f"{server.url}: the server rejected the key in {server.key}")
        return ModelError(
            f"{server.url}: the server requires a key; name the environment variable that "
            f"holds it in {SERVERS}"
        )
    if 300 <= status < 400:
        target = server.masked(response.headers.get("location", "elsewhere"))
        return ModelError(
            f"{server.url}: the server redirects to {target[:200]}; if that is right, use "
            "that address"
        )
    try:
        reason = reason_of(server, parse_json(text))
    except ValueError:
        reason = ""
    if status == 404 and not reason:
        return ModelError(
            f"{server.url}: the server has no such address; expected one like "
            "http://localhost:8000/v1"
        )
    what = f": {reason}" if reason else " without a message."
    return ModelError(f"{server.url}: the server returned HTTP {status}{what}")


def reason_of(server: Server, document: object) -> str:
    """The message in a server's error document; implementations of the protocol differ in its
    place.

    A key in it is masked; see `Server.masked`.
    """
    while isinstance(document, dict):
        document = next(
            (document[key] for key in ("error", "message", "detail") if document.get(key)), ""
        )
    words = " ".join(str(document).split())
    return server.masked(words)[:300]


def _unreachable(server: Server, error: Exception) -> ModelError:
    """The sentence that a server cannot be reached, or no longer."""
    import httpx2

    reason = server.masked(first_line(error))
    if isinstance(error, httpx2.ConnectTimeout):
        seconds = f"{_CONNECT_SECONDS:.0f} seconds"
        return ModelError(f"{server.url}: the server did not answer within {seconds}")
    if isinstance(error, (httpx2.ConnectError, *_NO_WAY)):
        return ModelError(f"{server.url}: the server cannot be reached: {reason}")
    if isinstance(error, httpx2.TimeoutException):
        return _silent(server)
    if isinstance(error, httpx2.DecodingError):
        return nonsense(server, reason)
    return ModelError(f"{server.url}: the server broke off the connection: {reason}")


def _silent(server: Server) -> ModelError:
    return ModelError(f"{server.url}: the server has stopped answering")


def nonsense(server: Server, what: str) -> ModelError:
    """The error for a malformed response. what: is wrong with it."""
    return ModelError(f"{server.url}: this is not a model server: {server.masked(what)}")


MOST_AT_ONCE = 4
"""Parallel requests: as many as a small server computes side by side; other requests wait."""

Item = TypeVar("Item")
Begin = Callable[[threading.Event], Iterator[Item]]
"""Requests an answer. Setting the event ends it."""


def at_once(answers: Iterable[Begin[Item]], most: int) -> Iterator[tuple[int, Item]]:
    """Yield the items of each answer as they arrive, with its number, from 0.

    answers: taken one by one, each as soon as fewer than `most` go on. Raises what one raises.
    """
    arrived: Queue[tuple[int, Item] | Exception | None] = Queue(_AHEAD)
    given_up = threading.Event()

    def put(item: tuple[int, Item] | Exception | None) -> None:
        while not given_up.is_set():
            with suppress(Full):
                return arrived.put(item, timeout=_POLL_SECONDS)

    def draw(number: int, begin: Begin[Item]) -> None:
        try:
            for item in begin(given_up):
                put((number, item))
            put(None)
        except Exception as error:
            put(error)

    waiting, going_on = enumerate(answers), 0
    try:
        while True:
            for upcoming in islice(waiting, most - going_on):
                threading.Thread(target=draw, args=upcoming, daemon=True).start()
                going_on += 1
            if not going_on:
                return
            item = arrived.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                going_on -= 1
            else:
                yield item
    finally:
        given_up.set()


class ManyAtOnce:
    """What models on servers have in common: several requests at a time.

    context: the window in tokens. concurrency: the most requests at a time.
    """

    context: int
    concurrency = MOST_AT_ONCE

    def generate(self, request: Request) -> Iterator[Event]:
        """See `LanguageModel.generate`."""
        raise NotImplementedError

    def generate_many(self, requests: Iterable[Request]) -> Iterator[tuple[int, Event]]:
        """See `LanguageModel.generate_many`; `concurrency` limits the parallel requests."""
        return at_once((partial(self._begin, request) for request in requests), self.concurrency)

    def _begin(self, request: Request, given_up: threading.Event) -> Iterator[Event]:
        try:
            yield from self.generate(replace(request, cancel=request.cancel or given_up))
        except ValueError as error:  # ContextOverflow is one
            yield Finished("error", message=str(error))

    def together(self, count: int) -> Generate:
        """See `LanguageModel.together`. Each is a request of its own, which the server computes
        whether or not its tokens are read.
        """
        return self.generate

    def check_room(self, prompt_tokens: int, *, about: str = "") -> None:
        """Raise ContextOverflow for a prompt that leaves no room for a reply. about: "about " where
        its tokens are estimated.
        """
        if prompt_tokens >= self.context:
            raise ContextOverflow(
                f"the prompt has {about}{prompt_tokens} tokens; the model's window of "
                f"{self.context} has room for {self.context - 1} and a reply"
            )

    def check_pairs(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        """Raise ContextOverflow for a text to be scored that exceeds the window."""
        longest = max((len(context) + len(rest) for context, rest in pairs), default=0)
        if longest > self.context:
            raise ContextOverflow(
                f"{longest} tokens are to be scored; the model's window has {self.context}"
            )
