"""Addresses of servers, and the user's names for them.

Names are in the file servers.toml in the folder of the settings, one table each:

    [cluster]
    url      = "https://gpu7.example/v1"
    model    = "gpt2-xl"        # if the server has several
    key      = "CLUSTER_KEY"    # the environment variable that holds the key
    context  = 1024             # if the server does not report it
    protocol = "auto"           # auto
 chat
 completions

Invariant: neither that file nor an address ever contains a key, because both are shown and stored.
"""

import base64
import ipaddress
import os
import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from chatapp.common.paths import SERVERS
from chatapp.engine.errors import ModelError

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
