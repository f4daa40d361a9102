"""The chat in a browser: textual-serve, with its own page and rules.

Each tab gets a program of its own, run as the user who serves.

Invariant: nobody gets one without the token, which is part of the address. Pages of other sites in
the same browser are refused, whatever name they use for this machine, and the page loads nothing
from any other machine.
"""

import ipaddress
import logging
import secrets
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import WSMsgType, web
from textual_serve.app_service import AppService
from textual_serve.server import Server

from chatapp.common.foreign import parse_json
from chatapp.engine.backends.remote.http import host_of

_PAGE = Path(__file__).parent / "page"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
)

_PATIENCE = 1.0
"""Seconds that open pages get when the server ends."""

_LARGEST = 1_000
"""Columns or rows of a page."""

MOST_TABS = 8
"""Chats at the same time; every one of them may load a model."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ChatServer(Server):
    """Serves the program that `command` starts, below the path /token/.

    hosts: the names that browsers may use for this machine. is_exposed: whether they may use any
        of its addresses, too: no page of another site can have one of those as its name.
    """

    def __init__(
        self, command: str, *, host: str, port: int, hosts: set[str], is_exposed: bool = False
    ) -> None:
        name = f"[{host}]" if ":" in host else host
        super().__init__(
            command,
            host=host,
            port=port,
            title="chatapp",
            public_url=f"http://{name}:{port}",
            templates_path=_PAGE.resolve(),
        )
        self.token = secrets.token_urlsafe(16)
        self._hosts = hosts
        self._is_exposed = is_exposed
        self._tabs = 0

    def initialize_logging(self) -> None:
        logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)

    async def on_startup(self, app: web.Application) -> None:
        """Says nothing yet: the port may still be refused."""

    def serve(self, debug: bool = False) -> None:
        """Serve until Ctrl+C. Raises OSError when the address cannot be bound."""
        self.initialize_logging()
        web.run_app(
            self._make_app(),
            host=self.host,
            port=self.port,
            print=self._announce,
            access_log=None,
            shutdown_timeout=_PATIENCE,
        )

    def _announce(self, _: str) -> None:
        address = f"{self.public_url}/{self.token}/"
        print(f"The chat is on {address} · Ctrl+C ends it", file=sys.stderr, flush=True)

    async def _make_app(self) -> web.Application:
        chat = await super()._make_app()
        chat.add_routes([web.static("/page", _PAGE)])
        app = web.Application(middlewares=[self._guard])
        app.add_subapp(f"/{self.token}", chat)
        return app

    async def handle_index(self, request: web.Request) -> web.StreamResponse:
        # The page uses the name in the browser's request.
        self.public_url = f"{request.scheme}://{request.host}"
        page: web.StreamResponse = await super().handle_index(request)
        return page

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        if self._tabs >= MOST_TABS:
            refused = web.WebSocketResponse()
            await refused.prepare(request)
            await refused.send_bytes(
                f"{MOST_TABS} chats are open, the most that this server allows. "
                "Close the tab of one, and load this page again.".encode()
            )
            await refused.close()
            return refused
        self._tabs += 1
        try:
            return await super().handle_websocket(request)
        finally:
            self._tabs -= 1

    async def _process_messages(
        self, websocket: web.WebSocketResponse, app_service: AppService
    ) -> None:
        async for message in websocket:
            read = _read(message.data) if message.type is WSMsgType.TEXT else None
            match read:
                case "stdin", str(text):
                    await app_service.send_bytes(text.encode("utf-8", "replace"))
                case "resize", (int(width), int(height)):
                    await app_service.set_terminal_size(width, height)
                case "ping", value:
                    await websocket.send_json(["pong", value])
                case "blur", _:
                    await app_service.blur()
                case "focus", _:
                    await app_service.focus()

    def _is_known(self, name: str) -> bool:
        """Whether a browser may use a name for this machine."""
        try:
            return name in self._hosts or (self._is_exposed and bool(ipaddress.ip_address(name)))
        except ValueError:
            return False

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            name = host_of(request.host)
            origin = urlsplit(request.headers.get("Origin", f"//{request.host}")).netloc
        except ValueError:
            raise web.HTTPBadRequest(text="The request has no valid Host header.") from None
        if not self._is_known(name):
            raise web.HTTPForbidden(text="This server does not use that host name.")
        if origin != request.host:
            raise web.HTTPForbidden(text="Pages of other sites cannot open the chat.")
        token = "".join(request.path.split("/")[1:2]).encode("utf-8", "replace")
        if not secrets.compare_digest(token, self.token.encode()):
            raise web.HTTPForbidden(
                text="This address has no valid token; open the one that `chatapp serve` printed."
            )
        for name in ("width", "height"):
            if _cells(request.query.get(name, "80")) is None:
                raise web.HTTPBadRequest(text=f"The {name} is not a number of cells.")
        response = await handler(request)
        if not response.prepared:
            response.headers["Content-Security-Policy"] = _POLICY
            response.headers["Referrer-Policy"] = "no-referrer"
        return response


def _read(text: str) -> tuple[str, object] | None:
    """What the page has sent and its value; None for what no page of ours sends."""
    try:
        kind, *values = parse_json(text)
    except (ValueError, TypeError, RecursionError):
        return None
    value = values[0] if values else None
    if kind == "resize" and isinstance(value, dict):
        value = _cells(value.get("width")), _cells(value.get("height"))
    return (kind, value) if isinstance(kind, str) else None


def _cells(value: object) -> int | None:
    """Columns or rows; None for an invalid or too large number."""
    try:
        number = int(str(value))
    except ValueError:
        return None
    return number if 0 < number <= _LARGEST else None
