"""A server of completions and chats inside a test: says and fails as it is told to.

Invariant: nothing here depends on time. A handler that waits, waits for the client or
for an event of the test.
"""

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from chatapp.engine.model import Sampling

Item = str | bytes | Callable[[], object]
"""Of a stream: the data of an event, raw bytes, or something to do in between."""


class BreakOff(Exception):
    """Close the connection in the middle of the answer."""


def break_off() -> None:
    raise BreakOff


def piece(text: str, reason: str | None = None, **more: Any) -> str:
    """The data of an event with some of the reply."""
    return json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": reason, **more}]})


def delta(reason: str | None = None, logprobs: Any = None, **texts: Any) -> str:
    """The data of an event with some of a chat's reply. texts: content, reasoning and so on."""
    choice = {"index": 0, "delta": texts, "finish_reason": reason, "logprobs": logprobs}
    return json.dumps({"choices": [choice]}, ensure_ascii=False)


def replied(*texts: str, reason: str = "stop") -> list[Item]:
    """The events of a chat's reply of these tokens."""
    opening = delta(role="assistant", content="")
    return [opening, *(delta(content=text) for text in texts), delta(reason), "[DONE]"]


SAMPLING = Sampling(
    temperature=0.5, top_p=0.8, top_k=7, min_p=0.1, repetition_penalty=1.2, seed=3, max_tokens=9
)
SENT = {
    "max_tokens": 9,
    "temperature": 0.5,
    "top_p": 0.8,
    "top_k": 7,
    "min_p": 0.1,
    "repetition_penalty": 1.2,
    "repeat_penalty": 1.2,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "seed": 3,
    "stream": True,
    "stream_options": {"include_usage": True},
}
"""What a request has of `SAMPLING`."""
LOGPROBS = {
    "content": [
        {
            "token": "Yes",
            "logprob": -0.5,
            "bytes": [89],
            "top_logprobs": [{"token": "No", "logprob": -0.25}, {"token": "Yes", "logprob": -0.5}],
        }
    ],
    "refusal": None,
}
"""Of a chat's token, as `delta` takes them."""


def said(*texts: str, reason: str = "stop") -> list[Item]:
    """The events of a reply of these tokens."""
    return [*map(piece, texts), piece("", reason), "[DONE]"]


def usage(prompt: int, reply: int, cached: int = 0) -> str:
    """The data of the event that tells how many tokens there were."""
    details = {"cached_tokens": cached}
    counts = {"prompt_tokens": prompt, "completion_tokens": reply, "prompt_tokens_details": details}
    return json.dumps({"choices": [], "usage": counts})


class _Http(ThreadingHTTPServer):
    """A server whose connections end with it, as those of a process do."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.connections: list[socket.socket] = []

    def get_request(self) -> Any:
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def server_close(self) -> None:
        super().server_close()
        for connection in self.connections:
            with suppress(OSError):  # it has ended
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *arguments: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # clients may hang up at any time
            super().handle_error(*arguments)


class CompletionsServer:
    """Listens on a port of its own.

    models: the rows of its list. props: what llama.cpp's server tells at its root, if anything.
    protocols: the paths it has below /v1. stream: what answers a request for a completion or a
    reply, or a function of the request.
    instead: (status, body, headers) that answers everything in place of that, when set; by
        the path that it answers.
    requests, keys: bodies and Authorization headers of the requests so far. probes: the paths
    that were asked for with a request that cannot be carried out; refused: those that it does
    not have.
    gone: set when a client has hung up while `hang` waited for it.
    """

    def __init__(self) -> None:
        self.models: list[Any] = [{"id": "tiny"}]
        self.props: Any = None
        self.protocols: tuple[str, ...] = ("completions",)
        self.stream: list[Item] | Callable[[dict[str, Any]], list[Item]] = said(" Hello", ".")
        self.instead: dict[str, tuple[int, str, dict[str, str]]] = {}
        self.requests: list[dict[str, Any]] = []
        self.probes: list[str] = []
        self.refused: list[str] = []
        self.keys: list[str | None] = []
        self.gone = threading.Event()
        self._connection: socket.socket | None = None
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

            def do_GET(self) -> None:
                server.keys.append(self.headers["Authorization"])
                if self.path in server.instead:
                    self._answer(*server.instead[self.path])
                elif self.path == "/v1/models":
                    self._answer(200, json.dumps({"object": "list", "data": server.models}))
                elif self.path == "/props" and server.props is not None:
                    self._answer(200, json.dumps(server.props))
                else:
                    self._answer(404, "not found")

            def do_POST(self) -> None:
                server.keys.append(self.headers["Authorization"])
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = json.loads(body)
                # What is not there is empty, as it is for llama-cpp-python's.
                can_be_replied_to = isinstance(
                    request.get("messages", request.get("prompt", "")), str | list
                )
                if not can_be_replied_to:
                    server.probes.append(self.path)
                if self.path.removeprefix("/v1/") not in server.protocols:
                    server.refused.append(self.path)
                    self._answer(404, "not found")
                    return
                if not can_be_replied_to:
                    self._answer(422, "there is nothing to reply to")
                    return
                server.requests.append(request)
                if self.path in server.instead:
                    self._answer(*server.instead[self.path])
                    return
                stream = server.stream(request) if callable(server.stream) else server.stream
                if isinstance(stream, tuple):
                    self._answer(*stream)
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream; charset=utf-8")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                server._connection = self.connection
                self.close_connection = True
                try:
                    for item in stream:
                        if callable(item):
                            item()
                        else:
                            self._send(item if isinstance(item, bytes) else _event(item))
                    self.wfile.write(b"0\r\n\r\n")
                except (BreakOff, OSError):
                    pass

            def _send(self, data: bytes) -> None:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()

            def _answer(
                self, status: int, body: str, headers: dict[str, str] | None = None
            ) -> None:
                data = body.encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._http = _Http(("127.0.0.1", 0), Handler)
        self.root = f"http://127.0.0.1:{self._http.server_port}"
        self.url = f"{self.root}/v1"

    def hang(self) -> None:
        """Wait until the client hangs up."""
        assert self._connection is not None
        self._connection.settimeout(120)
        try:
            if not self._connection.recv(1):
                self.gone.set()
        except ConnectionError:
            self.gone.set()

    @contextmanager
    def running(self) -> Iterator["CompletionsServer"]:
        thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            self._http.server_close()
            thread.join()


def _event(data: str) -> bytes:
    return "".join(f"data: {line}\n" for line in data.split("\n")).encode() + b"\n"


def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
