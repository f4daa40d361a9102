"""A hub inside a test: one model repository, and connections that break off as it is told to.

Invariant: nothing here depends on time. Only what huggingface_hub's client asks for is answered.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c0ffee" + "0" * 34


class HubServer:
    """Answers for the repository org/tiny.

    files: its contents by their paths.
    cut: after how many bytes of a file the connection breaks off, once for each number.
    requests: how many there were. fetched: the files asked for, and from which byte on.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.cut: dict[str, list[int]] = {}
        self.card: dict[str, Any] = {"license": "mit"}
        self.requests = 0
        self.fetched: list[tuple[str, int]] = []
        self.url = ""

    @contextmanager
    def running(self) -> "Iterator[HubServer]":
        """Serve on a free port while the context lasts."""
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.hub.requests += 1
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/org/tiny/tree/"):
            self._json(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                    for name, data in self.hub.files.items()
                ]
            )
        elif path.startswith("/api/models/org/tiny"):
            card = self.hub.card
            self._json({"id": "org/tiny", "sha": COMMIT, "cardData": card, "siblings": []})
        elif (name := self._file()) is not None:
            self._send_file(name)
        else:
            self._missing()

    def do_HEAD(self) -> None:
        self.hub.requests += 1
        if (name := self._file()) is None:
            self._missing()
        else:
            self._headers(200, self.hub.files[name])

    def _file(self) -> str | None:
        name = self.path.removeprefix(f"/org/tiny/resolve/{COMMIT}/")
        return name if name in self.hub.files else None

    def _send_file(self, name: str) -> None:
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.hub.fetched.append((name, start))
        data = self.hub.files[name]
        self._headers(206 if start else 200, data, start)
        cuts = self.hub.cut.get(name)
        self.wfile.write(data[start : cuts.pop(0) if cuts else None])
        self.close_connection = True

    def _headers(self, status: int, data: bytes, start: int = 0) -> None:
        self.send_response(status)
        self.send_header("ETag", f'"{_etag(data)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()

    def _missing(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
