"""Answers of others: none is compressed, and no key is in a sentence on one."""

import gzip

import httpx2
import pytest

from chatapp.common.web import web_client, without_keys
from chatapp.engine.errors import first_line

DATA = b"data: " + b"x" * 100_000 + b"\n\n"


def answering(**headers):
    packed = gzip.compress(DATA) if "content_encoding" in headers else DATA
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.MockTransport(lambda _: httpx2.Response(200, content=packed, headers=named))


@pytest.mark.parametrize("coding", ["gzip", "GZIP"])
async def test_a_compressed_answer_is_refused(coding):
    with (
        web_client(httpx2.Client, transport=answering(content_encoding=coding)) as client,
        pytest.raises(httpx2.DecodingError, match="compressed"),
    ):
        client.get("http://a.example")
    transport = answering(content_encoding=coding)
    async with web_client(httpx2.AsyncClient, transport=transport) as waiting:
        with pytest.raises(httpx2.DecodingError, match="compressed"):
            await waiting.get("http://a.example")


def test_events_are_utf_8_whatever_the_server_says():
    """zlib is a codec, too: its text may be a thousand times as long as what arrived."""
    transport = answering(content_type="text/event-stream; charset=zlib")
    with web_client(httpx2.Client, transport=transport) as client:
        response = client.get("http://a.example")
        assert response.request.headers["accept-encoding"] == "identity"
        assert [event.data for event in httpx2.EventSource(response)] == ["x" * 100_000]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no proxy http://me:sk-1@proxy:80 here", "no proxy http://…@proxy:80 here"),
        ("https://a.example/mcp?key=sk-1&b=c is not", "https://a.example/mcp?key=…&b=… is not"),
        ("me@a.example asks: why? a=b", "me@a.example asks: why? a=b"),
    ],
)
def test_addresses_are_named_without_their_keys(text, shown):
    assert without_keys(text) == shown
    assert first_line(ValueError(f"{text}\nmore")) == shown
