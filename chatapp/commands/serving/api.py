"""`chatapp api`: the model for other programs, over OpenAI's protocol.

Invariant: only programs on this machine reach it unless the user explicitly allows more, and then
only with a key.
"""

import logging
import os
import socket
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from chatapp.commands.console import complain
from chatapp.commands.loading import choices_for, load
from chatapp.commands.options import PrecisionOption, TemplateOption
from chatapp.common.userfiles import UserError

if TYPE_CHECKING:
    from chatapp.api.service import Service
    from chatapp.common.settings import Settings

_FAILED = 1
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_PATIENCE = 2.0
"""Seconds that open requests get when the server ends."""


def api(
    models: Annotated[
        list[str] | None,
        typer.Option("--model", help="A model to serve; repeat it for several."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8080,
    expose: Annotated[
        bool,
        typer.Option(
            "--expose", help="Allow an address that other machines can reach; needs a key."
        ),
    ] = False,
    key_env: Annotated[
        str | None,
        typer.Option("--key-env", help="Environment variable with the API key that clients need."),
    ] = None,
    origins: Annotated[
        list[str] | None,
        typer.Option("--origin", help="A web page's origin that may use the server."),
    ] = None,
    template: TemplateOption = None,
    precision: PrecisionOption = None,
) -> None:
    """Serve models to other programs over OpenAI's protocol."""
    from chatapp.api.server import Access
    from chatapp.common.settings import load_settings
    from chatapp.engine.backends.remote.server import is_loopback

    key = _key(key_env)
    is_local = is_loopback(host)
    if not is_local and not (expose and key):
        raise UserError(
            f"{host} can be reached from other machines; --expose with --key-env allows this"
        )
    names = models or [load_settings().model]
    if len(set(names)) < len(names):
        raise UserError(f"--model names {max(names, key=names.count)!r} twice")
    access = Access(
        frozenset() if not is_local else _LOOPBACK | {host}, key, frozenset(origins or ())
    )
    with ExitStack() as stack:
        services = {}
        for name in names:
            chosen = {"model": name, "template": template, "precision": precision}
            services[name] = _service(load_settings(chosen))
            stack.callback(services[name].close)
        _serve(services, access, host, port)


def _key(variable: str | None) -> str:
    if variable is None:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise UserError(f"--key-env: the environment variable {variable} is empty or not set")
    return key


def _service(settings: "Settings") -> "Service":
    """Load a model for the server. Raises UserError."""
    from chatapp.api.service import Service
    from chatapp.dialogue.writers.choosing import choose_template

    model = load(settings.model, settings.precision, settings.device)
    try:
        template = choose_template(model, settings.template)
    except ValueError as error:
        raise UserError(str(error)) from None
    return Service(model, template, choices_for(model, settings), settings.model)


def _serve(services: "dict[str, Service]", access: "object", host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM."""
    from aiohttp import web

    from chatapp.api.server import Access, Server

    assert isinstance(access, Access)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("chatapp.api").setLevel(logging.INFO)
    name = f"[{host}]" if ":" in host else host

    def announce(_: str) -> None:
        models = ", ".join(services)
        address = f"http://{name}:{port}/v1"
        print(f"Serving {models} on {address} · Ctrl+C ends it", file=sys.stderr, flush=True)

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as listening:
            web.run_app(
                Server(services, access).app(),
                sock=listening,
                print=announce,
                access_log=None,
                shutdown_timeout=_PATIENCE,
                handler_cancellation=True,
            )
    except OSError as error:
        complain(f"{host} port {port} cannot be listened on: {error.strerror or error}")
        raise typer.Exit(_FAILED) from None
