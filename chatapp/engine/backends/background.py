"""A model that another process of this program has in memory: `chatapp api` on this machine.

Requests and events go over whole, so a reply is that of the same model here, without the time to
load it. What a server cannot do, such as showing hidden states, loads the model here after all.

Invariant: no import of torch and of an HTTP library, which take longer than an answer. The server
proves that it knows the token before it gets any text.
"""

import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from chatapp.common.parameters import Sampling
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Alternative, Event, Finished, Token
from chatapp.engine.model import ContextOverflow, Generate, LanguageModel, Request, Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from chatapp.engine.files.model_files import ModelFiles

ASK, GENERATE, SCORE, PROOF = (
    f"/background/{name}" for name in ("ask", "generate", "score", "proof")
)
"""The server's paths for this program."""

_CONNECT_SECONDS, _SILENCE_SECONDS = 5.0, 300.0  # a dead server is refused at once
_POLL_SECONDS = 0.05
"""Interval at which the cancel event is checked while nothing arrives."""

_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server of this program listens. token: the secret of its user."""

    host: str
    port: int
    token: str = field(repr=False)

    def is_alive(self) -> bool:
        """Whether the server is there, and is the one that knows the token."""
        nonce = secrets.token_hex(16)
        try:
            (answer,) = self._lines(PROOF, {"nonce": nonce}, "", _CONNECT_SECONDS)
            return hmac.compare_digest(str(answer.get("proof")), proof_of(self.token, nonce))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ModelError):
            return False  # another program listens there, or none

    def request(
        self, path: str, body: dict[str, Any], cancel: threading.Event | None = None
    ) -> Iterator[dict[str, Any]]:
        """The JSON objects of an answer, one a line. Setting `cancel` ends it.

        Raises ModelError where the server refuses or is gone.
        """
        try:
            yield from self._lines(path, body, self.token, _SILENCE_SECONDS, cancel)
        except (OSError, ValueError) as error:
            raise ModelError(f"the server in the background has ended: {error}") from None

    def _lines(
        self,
        path: str,
        body: dict[str, Any],
        token: str,
        patience: float,
        cancel: threading.Event | None = None,
    ) -> Iterator[dict[str, Any]]:
        """patience: seconds without anything. Raises OSError, ValueError, ModelError."""
        content = json.dumps(body).encode()
        # In HTTP/1.0 the answer ends with the connection.
        head = (
            f"POST {path} HTTP/1.0\r\nHost: {self.host}\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        with socket.create_connection((self.host, self.port), _CONNECT_SECONDS) as connection:
            connection.sendall(head.encode() + content)
            connection.settimeout(_POLL_SECONDS)
            lines = _received(connection, patience, cancel or threading.Event())
            status = next(lines, b"").split()
            while next(lines, b"\r").strip():
                pass
            for line in lines:
                document = json.loads(line)
                if status[1:2] != [b"200"]:
                    raise ModelError(str(document["error"]["message"]))
                yield document


def _received(
    connection: socket.socket, patience: float, cancel: threading.Event
) -> Iterator[bytes]:
    """The lines that arrive, until the end of the connection or until it is cancelled."""
    begun, heard = b"", time.monotonic()
    while not cancel.is_set():
        try:
            part = connection.recv(2**16)
        except TimeoutError:
            if time.monotonic() - heard > patience:
                raise
            continue
        heard = time.monotonic()
        *lines, begun = (begun + part).split(b"\n")
        yield from lines
        if not part:
            if begun:
                yield begun
            return


def proof_of(token: str, nonce: str) -> str:
    """What only somebody with the token can tell about a number."""
    return hmac.digest(token.encode(), nonce.encode(), "sha256").hex()


def written(event: Event) -> dict[str, Any]:
    """An event as JSON data."""
    return {"kind": type(event).__name__} | asdict(event)


def event_of(document: dict[str, Any]) -> Event:
    """The event in JSON data. Raises ValueError, TypeError for other data."""
    kind = document.pop("kind", None)
    if kind == Finished.__name__:
        return Finished(**document)
    if kind != Token.__name__:
        raise ValueError(f"{kind!r} is not the name of an event")
    others = tuple(Alternative(**other) for other in document.pop("alternatives"))
    return Token(alternatives=others, **document)


def events_of(
    documents: Iterator[dict[str, Any]], cancel: threading.Event | None = None
) -> Iterator[Event]:
    """The events of a reply; an error at the end where the server breaks it off."""
    try:
        for document in documents:
            event = event_of(document)
            yield event
            if isinstance(event, Finished):
                return
    except ModelError as error:
        yield Finished("error", message=str(error))
        return
    if cancel is not None and cancel.is_set():
        yield Finished("cancelled")
    else:
        yield Finished("error", message="the server in the background has broken off the reply")


def sent(request: Request) -> dict[str, Any]:
    """A request as JSON data."""
    names = ("stop", "top", "forced", "messages", "tools")
    return {
        "ids": list(request.ids),
        "sampling": asdict(request.sampling),
        **{name: getattr(request, name) for name in names},
        "constraint": request.constraint and asdict(request.constraint),
    }


def request_of(document: dict[str, Any]) -> Request:
    """The request in JSON data. Raises KeyError, TypeError for other data."""
    known = {name.name for name in fields(Sampling)}
    sampling = {name: value for name, value in document["sampling"].items() if name in known}
    names = ("ids", "stop", "top", "forced", "messages", "tools")
    limits = document["constraint"]
    return Request(
        sampling=Sampling(**sampling),
        constraint=None if limits is None else Constraint(**limits),
        **{name: document[name] for name in names},
    )


class BackgroundModel:
    """A `LanguageModel` on a server of this program that has the same files."""

    takes_messages = False

    def __init__(
        self,
        address: Address,
        files: "ModelFiles | None",
        *,
        name: str,
        context: int,
        start: Sequence[int],
        precision: str,
        read_tokenizer: Callable[[], Tokenizer],
        load: Callable[[], LanguageModel],
    ) -> None:
        """read_tokenizer, load: the model's tokenizer, and the model itself, into this process."""
        self.name, self.files, self.context, self.start = name, files, context, start
        self._address, self._precision = address, precision
        self._read_tokenizer, self._load = read_tokenizer, load

    @property
    def precision(self) -> str:
        return self._precision

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's, read at the first use."""
        return self._read_tokenizer()

    @cached_property
    def here(self) -> LanguageModel:
        """The model in this process, loaded at the first use. Raises ModelError."""
        return self._load()

    def generate(self, request: Request) -> Iterator[Event]:
        """See `LanguageModel.generate`."""
        if request.interventions:
            return self.here.generate(request)
        if not request.ids:
            raise ValueError("there are no tokens to continue; expected at least one")
        if len(request.ids) + len(request.forced) >= self.context:
            raise ContextOverflow(
                f"the prompt has {len(request.ids)} tokens; the model's window of "
                f"{self.context} has room for {self.context - 1} and a reply"
            )
        body = {"model": self.name} | sent(request)
        return events_of(self._address.request(GENERATE, body, request.cancel), request.cancel)

    def generate_many(self, requests: Iterable[Request]) -> Iterator[tuple[int, Event]]:
        """See `LanguageModel.generate_many`; the server continues them together."""
        from chatapp.engine.backends.remote.http import at_once

        return at_once((partial(self._begin, request) for request in requests), _AT_ONCE)

    def _begin(self, request: Request, given_up: threading.Event) -> Iterator[Event]:
        from dataclasses import replace

        return self.generate(replace(request, cancel=request.cancel or given_up))

    def together(self, count: int) -> Generate:
        """See `LanguageModel.together`."""
        return self.generate

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """See `LanguageModel.score`."""
        longest = max((len(context) + len(rest) for context, rest in pairs), default=0)
        if longest > self.context:
            raise ContextOverflow(
                f"{longest} tokens are to be scored; the model's window has {self.context}"
            )
        body = {"model": self.name, "pairs": [list(map(list, pair)) for pair in pairs]}
        for answer in self._address.request(SCORE, body):
            scores: list[list[float]] = answer["scores"]
            return scores
        raise ModelError("the server in the background has broken off the answer")

    def embed(self, ids: Sequence[int], layer: int = -1) -> "NDArray[np.float32]":
        """See `LanguageModel.embed`; computed in this process."""
        return self.here.embed(ids, layer)


def model_here(model: LanguageModel) -> LanguageModel:
    """A model in this process, whose inside can be seen and changed. Raises ModelError."""
    return model.here if isinstance(model, BackgroundModel) else model
