"""Whoever has no right gets nothing, and errors repeat neither texts nor paths."""

import asyncio
import json
import random

import pytest
from api_server import serving
from fakes import ScriptedModel

from chatapp.server.server import Access

MARK = "walrus secret"
MESSAGE = {"role": "user", "content": MARK}
PATHS = ("/completions", "/chat/completions", "/embeddings", "/tokenize")


async def raw(address, *lines):
    """The status of a request as it stands; 0 when the connection is only closed."""
    port = int(address.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\r\n".join([*lines, b"Connection: close", b"", b""]))
    first = await asyncio.wait_for(reader.readline(), 60)
    writer.close()
    return int(first.split()[1]) if first else 0


HOSTS = (
    "evil.example|127.0.0.1.evil.example|evil.example:80@127.0.0.1|127.0.0.1@evil.example"
    "|127.0.0.1, evil.example|127.0.0.1/evil.example|127.0.0.1#evil.example|127.1|2130706433"
    "|0.0.0.0|localhost.|[::1|[::ffff:127.0.0.1]||\xff"
)


@pytest.mark.parametrize("host", HOSTS.split("|"))
async def test_another_host_is_refused(host):
    async with serving(ScriptedModel(["Yes."])) as client:
        line = b"Host: " + host.encode("latin-1")
        assert await raw(client.address, b"GET /v1/models HTTP/1.1", line) in (0, 400, 403)
        assert await raw(client.address, b"GET /v1/models HTTP/1.1", b"Host: 127.0.0.1") == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1", "file://", "HTTP://PAGE.EXAMPLE"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_another_origin_is_refused_also_before_its_request(origin, method):
    access = Access(frozenset({"127.0.0.1"}), "", frozenset({"http://page.example"}))
    async with serving(ScriptedModel(["Yes."]), access) as client:
        url, headers = f"{client.address}/v1/chat/completions", {"Origin": origin}
        async with client.session.request(method, url, headers=headers) as response:
            assert response.status == 403
            assert "Access-Control-Allow-Origin" not in response.headers


@pytest.mark.parametrize(
    "given",
    "|Bearer|Bearer |Bearer secre|Bearer secret2|Bearer SECRET|Basic c2VjcmV0|Bearer \xff"
    "|Bearer secret, Bearer secret".split("|"),
)
async def test_another_key_opens_nothing(given):
    access = Access(frozenset(), "secret")
    async with serving(ScriptedModel(["Yes."]), access) as client:
        key = b"Authorization: " + given.encode("latin-1")
        for path in b"/v1/models /openapi.json //health /health/../models /nosuch".split():
            line = b"GET " + path + b" HTTP/1.1"
            assert await raw(client.address, line, b"Host: a.example", key) == 401


def broken(dice, folder):
    """A request that holds a secret everywhere, and values that do not fit."""
    odd = [None, MARK, [MARK], {MARK: MARK}, [[MARK]], -1, 10**400, float("nan"), "\ud800", folder]
    odd += [{"type": "json_schema", "json_schema": {"schema": {"pattern": f"({MARK}"}}}]
    odd += [{"type": "function", "function": {"name": MARK}}, [{"role": MARK}], [MESSAGE] * 2]
    odd += [[{"function": {"name": MARK, "parameters": {"type": MARK}}}], {"effort": MARK}]
    known = ["model", "n", "stop", "temperature", "top_k", "seed", "logprobs", "echo", "tools"]
    known += ["tool_choice", "response_format", "messages", "input", "prompt", "max_tokens"]
    known += ["text", "instructions", "stream_options", "encoding_format", "logit_bias"]
    body = {"prompt": MARK, "messages": [MESSAGE], "input": MARK, "max_tokens": 2}
    return body | {name: dice.choice(odd) for name in dice.sample(known, dice.randint(1, 3))}


async def test_errors_repeat_no_text_and_no_path(client, tiny_folder):
    dice = random.Random(41)
    refused = 0
    for _ in range(60):
        body = broken(dice, str(tiny_folder))
        data, path = json.dumps(body), dice.choice(PATHS)
        async with client.session.post(client.address + path, data=data) as response:
            text = await response.text()
        assert response.status < 500, (path, data, text)
        if response.status != 200 and "model" not in body:
            refused += 1
            assert MARK not in text, (path, data, text)
            assert str(tiny_folder) not in text
            assert "site-packages" not in text
    assert refused > 15
