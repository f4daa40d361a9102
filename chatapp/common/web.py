"""HTTP clients for the answers of others."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

_Client = TypeVar("_Client")

_USER = re.compile(r"(?<=//)[^/\s@]{1,300}@")
_VALUE = re.compile(r"([?&][^=&\s#]{1,100}=)[^&\s#'\"]+")


def web_client(kind: Callable[..., _Client], *hooks: Any, **options: Any) -> _Client:
    """A client of httpx2, whose answers are counted as they arrive: a compressed one may be a
    thousand times as long, and raises `httpx2.DecodingError`.

    kind: httpx2.Client or httpx2.AsyncClient. hooks: called with each response. options: its own.
    """
    import httpx2

    def refuse_packed(response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise httpx2.DecodingError("it sends a compressed answer, which was not accepted")
        if "text/event-stream" in response.headers.get("content-type", ""):
            response.encoding = "utf-8"  # whatever it names: zlib is a codec, too

    async def refuse_later(response: httpx2.Response) -> None:
        refuse_packed(response)

    first = refuse_packed if kind is httpx2.Client else refuse_later
    headers = {**options.pop("headers", {}), "Accept-Encoding": "identity"}
    return kind(headers=headers, event_hooks={"response": [first, *hooks]}, **options)


def without_keys(text: str) -> str:
    """A sentence without the passwords and the values of queries in its addresses."""
    return _VALUE.sub(r"\1…", _USER.sub("…@", text))
