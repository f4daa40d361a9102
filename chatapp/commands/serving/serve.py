"""`chatapp serve`: the chat in a browser."""

import shlex
import socket
from typing import Annotated

import typer

from chatapp.commands import options as shared
from chatapp.commands.console import FAILED, complain
from chatapp.common.limited_process import module_command
from chatapp.common.userfiles import UserError

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


def serve(
    host: shared.HostOption = "localhost",
    port: shared.PortOption = 8000,
    expose: Annotated[
        bool, typer.Option("--expose", help="Allow an address that other machines can reach.")
    ] = False,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", help="Another host name that browsers use for this machine."),
    ] = None,
    model: shared.ModelOption = None,
    template: shared.TemplateOption = None,
    precision: shared.PrecisionOption = None,
    last: shared.LastOption = False,
) -> None:
    """Serve the chat to a browser on this machine; each tab is a chat of its own."""
    from chatapp.common.settings import load_settings
    from chatapp.engine.backends.remote.http import is_loopback

    is_local = is_loopback(host)
    if not is_local and not expose:
        raise UserError(
            f"{host} can be reached from other machines, and the connection is not encrypted: "
            "whoever learns the printed address can read all chats and write files as you; "
            "--expose allows this"
        )
    options = {"model": model, "template": template, "precision": precision}
    load_settings(options)  # reports errors here, not in every tab
    command = module_command("chatapp", *(["--continue"] if last else []))
    for name, value in options.items():
        command += [f"--{name}={value}"] if value is not None else []

    from chatapp.commands.serving.browser import ChatServer

    if not is_local:
        complain("whoever learns the printed address can use the chat and read all other chats")
    hosts = _LOOPBACK | {host, *(names or ())} | (set() if is_local else {socket.gethostname()})
    server = ChatServer(
        shlex.join(command), host=host, port=port, hosts=hosts, is_exposed=not is_local
    )
    try:
        server.serve()
    except OSError as error:
        complain(f"{host} port {port} cannot be listened on: {error.strerror or error}")
        raise typer.Exit(FAILED) from None
