"""Addresses of servers, and the names that the user has given to some.

Names stand in the file servers.toml in the folder of the settings, one table each:

    [cluster]
    url      = "https://gpu7.example/v1"
    model    = "gpt2-xl"        # where the server has several
    key      = "CLUSTER_KEY"    # the environment variable that holds the key
    context  = 1024             # where the server does not tell
    protocol = "auto"           # auto | chat | completions

Keep: no key is ever in that file or in an address, where it would be shown and stored.
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
    """Where a model is served.

    url: in its one spelling, see `server_url`. model: its name there; empty for the only one.
    key: the environment variable that holds the key; empty when none is needed.
    context: the window in tokens; 0 for what the server tells. protocol: what chats are held in;
    "auto" is the chat protocol where the server has it.
    """

    url: str
    model: str = ""
    key: str = ""
    context: int = 0
    protocol: Literal["auto", "chat", "completions"] = "auto"

    @property
    def is_here(self) -> bool:
        """Whether its address is one of this machine."""
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
        """A text of the server's with the name of the key's variable in place of the key: plain,
        reversed, and either in base64 or with characters encoded by per cent."""
        key = os.environ.get(self.key, "").strip() if self.key else ""
        for spelling in (key, key[::-1]) if key else ():
            in_base64 = "|".join(map(re.escape, _in_base64(spelling)))
            by_per_cent = "".join(f"(?:{re.escape(each)}|%{ord(each):02x})" for each in spelling)
            pattern = f"{by_per_cent}|{in_base64}" if in_base64 else by_per_cent
            text = re.sub(pattern, self.key, text, flags=re.IGNORECASE)
        return text


_SHORTEST = 6
"""Characters of base64 that are taken for a key."""


def _in_base64(text: str) -> list[str]:
    """What stands for a text in base64, wherever in the encoded text it begins."""
    spellings: list[str] = []
    for before in range(3):
        data = bytes(before) + text.encode()
        # The first and the last characters also hold bits of the neighbours.
        code = base64.b64encode(data).decode()[(8 * before + 5) // 6 : 8 * len(data) // 6]
        spellings += [code, code.translate(str.maketrans("+/", "-_"))]
    return [each for each in dict.fromkeys(spellings) if len(each) >= _SHORTEST]


def is_loopback(host: str) -> bool:
    """Whether a host's name or address leads nowhere but to this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(name: str) -> bool:
    """Whether a name is meant as the address of a server."""
    return name.startswith(_SCHEMES)


def server_url(address: str) -> str:
    """An address in its one spelling: no slash at its end, `/v1` when it names no path.

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
