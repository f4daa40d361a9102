"""Servers by their names in servers.toml.

Invariant: a name in that file wins over a folder or a hub model of the same name.
"""

import re
from dataclasses import replace

from chatapp.common.paths import SERVERS, config_dir
from chatapp.common.userfiles import read_toml
from chatapp.engine.backends.remote.http import Server, is_address, server_url
from chatapp.engine.errors import ModelError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def server_of(name: str) -> Server | None:
    """The server for a name or an address; None for any other name.

    name: ends with `#` and one of the server's models if it has several. The key and context of a
    named server also apply to its bare address. Raises ModelError for an invalid address or an
    unusable file of names.
    """
    address, _, model = name.partition("#")
    servers = named_servers()
    server = servers.get(address)
    if server is None and is_address(address):
        url = server_url(address)
        server = next(
            (candidate for candidate in servers.values() if candidate.url == url), Server(url)
        )
    return replace(server, model=model) if server is not None and model else server


def named_servers() -> dict[str, Server]:
    """The servers in the user's file, by their names. Raises ModelError."""
    path = config_dir() / SERVERS
    try:
        tables = read_toml(path, ModelError)
    except FileNotFoundError:
        return {}
    return {name: _server(table, f"{path}, server {name!r}") for name, table in tables.items()}


def _server(table: object, origin: str) -> Server:
    """One table of the file. Raises ModelError that begins with `origin`."""
    from chatapp.common.validation import strict_model, validated

    checked = validated(strict_model(Server), table, ModelError, origin=origin, what="server")
    server = Server(**dict(checked))
    try:
        server = replace(server, url=server_url(server.url))
    except ModelError as error:
        raise ModelError(f"{origin}: {error}") from None
    if server.key and not _NAME.fullmatch(server.key):
        raise ModelError(
            f"{origin}: 'key' must name an environment variable; put the key itself into "
            "that variable"
        )
    if server.context < 0 or server.context == 1:
        raise ModelError(f"{origin}: 'context' is {server.context}, expected 2 tokens or more")
    return server
