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
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

from chatapp.common.foreign import parse_json
from chatapp.common.paths import SERVERS
from chatapp.common.web import web_client
from chatapp.engine.errors import Cancelled, ModelError, first_line
from chatapp.engine.events import Event, Finished, FinishReason, Token
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
            by_per_cent = (f"(?:{re.escape(letter)}|%{ord(letter):02x})" for letter in spelling)
            patterns = ["".join(by_per_cent), *map(re.escape, _in_base64(spelling))]
            text = re.sub("|".join(patterns), self.key, text, flags=re.IGNORECASE)
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
# empty events and headers that arrive byte by byte are not a sign of life.
_CONNECT_SECONDS, _ANSWER_SECONDS, SILENCE_SECONDS = 5.0, 10.0, 300.0

_IDLE_SECONDS = 2.0
"""How long an unused connection is kept; one that the server is about to close fails a request."""

_POLL_SECONDS = 0.05
"""How often the cancel event is checked while nothing arrives."""

_AHEAD = 64
"""Items of parallel answers that have arrived and wait to be read."""

_MOST_BYTES, _MOST_REFUSAL_BYTES = 64 * 2**20, 2**20
"""Bytes of an answer as decoded: one of tokens and their log-probabilities, and an error."""

_BUSY, _MOST_TRIES, _RETRY_SECONDS = 503, 30, 1.0
"""A server whose queue is full is asked again."""

NO_PATH = (404, 405, 501)
"""Statuses of a server that does not know a path."""

_NO_WAY = (ValueError, ImportError, OSError)
"""What httpx2 raises for an invalid host name, a proxy, and certificates."""

Item = TypeVar("Item")


class RefusedError(ModelError):
    """The server can be reached, but does not do what was requested.

    status: of its answer. reason: its own words; often none.
    """

    def __init__(self, sentence: str, status: int = 200, reason: str = "") -> None:
        super().__init__(sentence)
        self.status, self.reason = status, reason


class Client:
    """Requests to a server, from any thread, over connections that are kept for a moment.

    A thread of its own serves them, so that each can be left at any time: a request that is left
    closes its connection. A path that begins with a slash is from the server's root, any other one
    from its address.
    """

    def __init__(self, server: Server) -> None:
        """Raises ModelError where no connection is possible, as for want of certificates."""
        import httpx2

        self.server = server
        try:
            self._http = web_client(
                httpx2.AsyncClient,
                timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
                limits=httpx2.Limits(keepalive_expiry=_IDLE_SECONDS),
                follow_redirects=False,  # the key is for this address only
                trust_env=not server.is_here,  # a proxy cannot reach this machine
                verify=server.url.startswith("https:"),  # loading certificates takes a while
            )
        except _NO_WAY as error:
            raise _unreachable(server, error) from None
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=_serve, args=(self._loop, self._http), daemon=True).start()
        weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)

    def has_path(self, path: str, body: Body) -> bool:
        """Whether the server knows a path. Raises ModelError when it cannot be reached.

        body: a request that no server can fulfil, so that the probe costs nothing.
        """
        try:
            self._document("POST", path, body, _ANSWER_SECONDS)
        except RefusedError as refusal:
            return refusal.status not in NO_PATH
        return True

    def get(self, path: str) -> dict[str, Any]:
        """A JSON object of the server. Raises ModelError, RefusedError if it refuses."""
        return self._document("GET", path, None, _ANSWER_SECONDS)

    def post(self, path: str, body: Body, seconds: float = _ANSWER_SECONDS) -> dict[str, Any]:
        """What the model answers, a JSON object. A busy server is asked again.

        seconds: until the whole answer has arrived. Raises ModelError, RefusedError if it refuses.
        """
        body = {"model": self.server.model} | body
        for _ in range(_MOST_TRIES - 1):
            try:
                return self._document("POST", path, body, seconds)
            except RefusedError as refusal:
                if refusal.status != _BUSY:
                    raise
            time.sleep(_RETRY_SECONDS)
        return self._document("POST", path, body, seconds)

    def events(
        self,
        path: str,
        body: Body,
        read: Callable[[str], Item],
        cancel: threading.Event,
        simpler: Callable[[Body, int, str], Body | None] = lambda body, status, text: None,
    ) -> Generator[Item]:
        """Post a request and yield its server-sent events; closing the iterator ends the request.

        read: converts the data of an event; a false result is not a sign of life. simpler: maps a
        refused body, the status and the server's words to the body of another attempt, or to None.
        Raises Cancelled, ModelError, and what `read` and `simpler` raise.
        """
        stream, silence = self._stream(path, body, simpler), 0.0
        arriving = self._start(anext(stream, ""))  # nothing is read before it is wanted
        try:
            while True:
                started = time.monotonic()
                is_there = bool(wait([arriving], _POLL_SECONDS).done)
                silence += time.monotonic() - started
                if cancel.is_set():
                    raise Cancelled
                if is_there:
                    if not (data := arriving.result()):
                        return
                    item = read(data)
                    silence = 0.0 if item else silence
                    yield item
                    arriving = self._start(anext(stream, ""))
                if silence > SILENCE_SECONDS:
                    raise _silent(self.server)
        finally:
            arriving.cancel()
            self._start(stream.aclose())

    async def _stream(
        self, path: str, body: Body, simpler: Callable[[Body, int, str], Body | None]
    ) -> AsyncGenerator[str]:
        """The data of each event."""
        import httpx2

        attempt: Body | None = body
        while attempt is not None:
            async with self._response("POST", path, attempt) as response:
                if response.status_code == 200:
                    async for event in httpx2.EventSource(response):
                        if event.data:  # other fields do not matter in a single stream
                            yield event.data
                    return
                text = await _text(response, _MOST_REFUSAL_BYTES)
            attempt = simpler(attempt, response.status_code, text)
        raise _refusal(self.server, response, text)

    def _document(
        self, method: str, path: str, body: Body | None, seconds: float
    ) -> dict[str, Any]:
        """The JSON object that answers a request."""
        request = self._start(asyncio.wait_for(self._whole(method, path, body), seconds))
        try:
            return request.result()
        except TimeoutError:
            raise _silent(self.server) from None
        finally:
            request.cancel()

    async def _whole(self, method: str, path: str, body: Body | None) -> dict[str, Any]:
        async with self._response(method, path, body) as response:
            if response.status_code != 200:
                raise _refusal(self.server, response, await _text(response, _MOST_REFUSAL_BYTES))
            text = await _text(response, _MOST_BYTES)
        return json_object(self.server, text, "its answer")

    @asynccontextmanager
    async def _response(
        self, method: str, path: str, body: Body | None
    ) -> "AsyncIterator[httpx2.Response]":
        """A response while it arrives. Raises ModelError."""
        import httpx2

        server, key = self.server, self.server.secret()
        root = server.url.removesuffix("/v1") if path.startswith("/") else f"{server.url}/"
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            async with self._http.stream(
                method, root + path, json=body, headers=headers
            ) as response:
                yield response
        except httpx2.SSEError:
            raise nonsense(server, "its response is not an event stream") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, *_NO_WAY) as error:
            raise _unreachable(server, error) from None

    def _start(self, request: Awaitable[Item]) -> "Future[Item]":
        return asyncio.run_coroutine_threadsafe(request, self._loop)  # type: ignore[arg-type]


def _serve(loop: asyncio.AbstractEventLoop, http: "httpx2.AsyncClient") -> None:
    """Run the requests of a client until it is no longer used."""
    loop.run_forever()
    loop.run_until_complete(http.aclose())
    loop.close()


async def _text(response: "httpx2.Response", most: int) -> str:
    """The body of a response up to a number of bytes, with what is above cut off."""
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > most:
            break
    return body.decode("utf-8", "replace")


def _refusal(server: Server, response: "httpx2.Response", text: str) -> RefusedError:
    """The sentence that a server refused a request. text: the body of its response."""
    status, reason = response.status_code, ""
    with suppress(ValueError):
        reason = reason_of(server, parse_json(text))
    if status in (401, 403) and server.key:
        words = f"the server rejected the key in {server.key}"
    elif status in (401, 403):
        words = (
            f"the server requires a key; name the environment variable that holds it in {SERVERS}"
        )
    elif 300 <= status < 400:
        target = server.masked(response.headers.get("location", "elsewhere"))
        words = f"the server redirects to {target[:200]}; if that is right, use that address"
    elif status == 404 and not reason:
        words = "the server has no such address; expected one like http://localhost:8000/v1"
    else:
        words = f"the server returned HTTP {status}" + (
            f": {reason}" if reason else " without a message."
        )
    return RefusedError(f"{server.url}: {words}", status, reason)


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


def json_object(server: Server, text: str, what: str) -> dict[str, Any]:
    """What a server sends as a JSON object. what: it is. Raises RefusedError."""
    try:
        document = parse_json(text)
    except ValueError:
        raise RefusedError(str(nonsense(server, f"{what} is not JSON"))) from None
    if not isinstance(document, dict):
        raise RefusedError(str(nonsense(server, f"{what} is not a JSON object")))
    return document


class ArrivingReply:
    """A reply of a server, as events. What a server sends is read by subclasses.

    reason: why it ended; None while unknown. over: nothing more is wanted.
    """

    reason: FinishReason | None = None
    over = False

    def take(self, item: Any) -> Iterator[Token]:
        """The tokens in what has arrived. Raises ModelError."""
        raise NotImplementedError

    def finished(self, failure: str) -> Finished:
        """The end, with the text held back. failure: what went wrong; often nothing."""
        raise NotImplementedError

    def failed(self, error: ModelError) -> str:
        """What went wrong, in words; or raises it."""
        return str(error)

    def events(self, arriving: Generator[Any]) -> Iterator[Event]:
        """The tokens, then the end: text that has arrived is kept, whatever happens to the
        connection.
        """
        started, first, failure = time.perf_counter(), 0.0, ""
        try:
            for item in arriving:
                for token in self.take(item):
                    first = first or time.perf_counter() - started
                    yield token
                if self.over:
                    break
        except Cancelled:
            self.reason = "cancelled"
        except ModelError as error:
            failure = self.failed(error)
        finally:
            arriving.close()
        seconds = time.perf_counter() - started
        yield replace(self.finished(failure), time_to_first_token=first, seconds=seconds)


MOST_AT_ONCE = 4
"""Parallel requests: as many as a small server computes side by side; other requests wait."""

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
