"""The tool `page`: a web page as text.

Invariant: only public addresses are contacted. All addresses of a host are checked, and the
connection goes to a checked one, so that a name cannot change its meaning in between; the same
holds after each redirect. Everything runs in a limited process: the time for names, connections and
bytes together, and the memory, are bounded.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING

from chatapp.common.limited_process import LimitedProcess, LimitPassedError
from chatapp.common.userfiles import UserError, quoted
from chatapp.common.web import web_client
from chatapp.dialogue.documents.passages import Unreadable, read_blocks
from chatapp.dialogue.tools.tool import Arguments, ToolError, stopped_by

if TYPE_CHECKING:
    import httpx2

_READER = __name__
_SECONDS = 20.0
_MEMORY = 2**30
_MOST_BYTES = 2**20
_MOST_REDIRECTS = 5

_LIMITS = {
    "time": f"the page took longer than {_SECONDS:.0f} seconds",
    "memory": f"the page takes more than {_MEMORY // 2**30} GiB of memory",
    "end": "the page cannot be read",
}

_PUBLIC_IPV6 = ip_network("2000::/3")
"""The block of global addresses: addresses that stand for one of IPv4 are mostly outside."""

_CLOUDS = tuple(map(ip_network, ("168.63.129.16/32", "192.0.0.0/24")))
"""Where clouds answer their own machines about themselves, although the addresses are public."""

_SUFFIXES = {
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "application/pdf": ".pdf",
    "application/json": ".txt",
    "": ".html",
}
"""How the content of a type is read; other types of text are plain text."""


def fetch_page(arguments: Arguments, cancel: threading.Event) -> str:
    """The text of the page at an address. Raises UserError and Stopped."""
    process = LimitedProcess(_READER, "answer", memory=_MEMORY, network=True)
    try:
        return "".join(process.stream(arguments["url"], _SECONDS, stopped_by(cancel)))
    except LimitPassedError as passed:
        raise ToolError(_LIMITS[passed.limit]) from None
    finally:
        process.close()


def answer(address: str) -> Iterator[str]:
    """Fetch a page and yield its text; in the limited process. Raises UserError."""
    import httpx2

    url = address
    try:
        for _ in range(_MOST_REDIRECTS + 1):
            with closing(_opened(httpx2.URL(url))) as response:
                if not response.has_redirect_location:
                    yield _text(response, url if url != address else "")
                    return
                url = str(httpx2.URL(url).join(response.headers["location"]))
        raise UserError(f"the page redirects more than {_MOST_REDIRECTS} times")
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
        raise UserError(f"{quoted(url)} cannot be fetched: {error}") from None


def _opened(url: "httpx2.URL") -> "httpx2.Response":
    """A response whose body is not read yet, from a public address. Raises UserError."""
    import httpx2

    if url.scheme not in ("http", "https") or not url.host or url.userinfo:
        raise UserError(f"{quoted(str(url))} is not a web address such as https://example.org/")
    # No proxy, which would look the name up again; no cookies of another host.
    client = web_client(httpx2.Client, trust_env=False, timeout=_SECONDS)
    failure: Exception | None = None
    for number in _public_addresses(url):
        request = client.build_request(
            "GET",
            url.copy_with(host=number),
            headers={"Host": url.netloc.decode("ascii")},
            extensions={"sni_hostname": url.raw_host.decode("ascii")},
        )
        try:
            return client.send(request, stream=True)
        except httpx2.ConnectError as error:
            failure = error
    raise failure or UserError(f"{quoted(url.host)} has no address")


def _public_addresses(url: "httpx2.URL") -> list[str]:
    """The addresses of a host, all of them public. Raises UserError."""
    try:
        answers = socket.getaddrinfo(url.raw_host.decode("ascii"), None, type=socket.SOCK_STREAM)
    except OSError:
        raise UserError(f"there is no host {quoted(url.host)}") from None
    numbers = list(dict.fromkeys(str(place[0]) for *_, place in answers))
    for number in numbers:
        if not is_public(number):
            meaning = "" if number == url.host else f" is {number}, which"
            raise UserError(f"{quoted(url.host)}{meaning} is not a public address")
    return numbers


def is_public(number: str) -> bool:
    """Whether an IP address is one of the public internet."""
    address = ip_address(number)
    if isinstance(address, IPv6Address) and (
        address not in _PUBLIC_IPV6 or address.sixtofour or address.teredo
    ):
        return False
    if any(address in block for block in _CLOUDS):
        return False
    return address.is_global and not address.is_multicast


def _text(response: "httpx2.Response", redirected: str) -> str:
    """The text of a page. redirected: its address, if it is another than the given one."""
    if response.status_code >= 400:
        raise UserError(f"the server answers {response.status_code} {response.reason_phrase}")
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    suffix = _SUFFIXES.get(kind, ".txt" if kind.startswith("text/") else "")
    if not suffix:
        raise UserError(f"the page is {quoted(kind)}, which is not a text")
    data = bytearray()
    for part in response.iter_bytes():
        data += part
        if len(data) > _MOST_BYTES:
            break
    content = bytes(data[:_MOST_BYTES])
    if suffix != ".pdf":
        content = content.decode(response.encoding or "utf-8", "replace").encode()
    try:
        blocks = read_blocks(Path(f"page{suffix}"), content)
    except Unreadable as error:
        raise UserError(f"the page is not a text that can be read: {error}") from None
    ends = ["[cut after 1 MiB]"] if len(data) > _MOST_BYTES else []
    return "\n\n".join([*([redirected] if redirected else []), *(b.text for b in blocks), *ends])
