"""Clients that send half a request, too much, or read nothing: no other reply is lost."""

import asyncio
import gc
import json
import logging
import socket
from contextlib import suppress

import pytest
from aiohttp import ClientError, web
from api_server import serving

from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.server import server
from chatapp.server.server import LARGEST_BODY

TEXT = "/v1/completions"
FIELDS = {"temperature": 0, "top_p": 1.0}
LINES = (b"POST /v1/completions HTTP/1.1", b"Host: 127.0.0.1", b"Content-Length: 999")
HALVES = (b"", b"POST", b"\r\n".join(LINES), b"\r\n".join([*LINES, b"", b'{"prompt": "a']))


@pytest.fixture
async def hasty(tiny_folder, monkeypatch):
    """A server that waits a second for its clients."""
    monkeypatch.setattr(server, "SILENCE", 1.0)
    async with serving(load_model(str(tiny_folder), precision="float32", device="cpu")) as client:
        yield client


async def half_open(client, data):
    """Send a part of a request and wait until the server ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(client))
    with suppress(ConnectionError):
        writer.write(data)
        return await reader.read()
    return b""


def port_of(client):
    return int(client.address.rsplit(":", 1)[1])


async def slow_reader(client):
    """Ask for more than the buffers hold and read nothing; ends when the server has given up."""
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", port_of(client)))
        body = {"prompt": "To be", "max_tokens": 250, "logprobs": 20, "stream": True, "n": 8}
        data = json.dumps(body | {"temperature": 1, "seed": 1}).encode()
        lines = [*LINES[:2], b"Content-Length: %d" % len(data), b"", data]
        await loop.sock_sendall(connection, b"\r\n".join(lines))
        await asyncio.sleep(2.5)
        with suppress(ConnectionError):
            while await loop.sock_recv(connection, 2**20):
                pass


async def leaver(client):
    body = {"prompt": "To be", "max_tokens": 200, "temperature": 1, "stream": True, "seed": 1}
    async with client.session.post(client.address + TEXT, json=body) as response:
        await response.content.readany()
        response.close()


async def test_a_client_that_leaves_is_one_line_in_the_log(client, monkeypatch, caplog):
    async def closed(response, data):
        raise ConnectionResetError

    caplog.set_level(logging.INFO)
    with monkeypatch.context() as patch:
        patch.setattr(web.StreamResponse, "write", closed)
        with suppress(ClientError):
            await client.stream(TEXT, {"prompt": "To be", "max_tokens": 3})
    assert f"POST {TEXT} 499 " in caplog.text
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def large(client, data, status):
    async with client.session.post(client.address + TEXT, data=data) as response:
        assert response.status == status


@pytest.mark.parametrize("count", [16, pytest.param(1000, marks=pytest.mark.long)])
async def test_half_requests_cost_no_other_its_reply(hasty, count):
    waiting = [asyncio.create_task(half_open(hasty, HALVES[n % 4])) for n in range(count)]
    waiting.append(asyncio.create_task(slow_reader(hasty)))
    await check_replies(hasty)
    *ends, _ = await asyncio.gather(*waiting)
    assert {end[9:12] for end in ends} <= {b"", b"408"}


async def test_large_bodies_cost_no_other_its_reply(client):
    text = json.dumps({"prompt": "a b " * 2_500_000}).encode()
    others = [
        *(leaver(client) for _ in range(4)),
        large(client, text, 400),
        large(client, b"{" * 10_000_000, 400),
        large(client, b" " * (LARGEST_BODY + 1), 413),
    ]
    rough = [asyncio.create_task(other) for other in others]
    await check_replies(client)
    await asyncio.gather(*rough)


async def check_replies(client):
    """Replies are those of the model, while other clients do what they like."""
    ids = client.model.tokenizer.encode("To be")
    sampling = Sampling(temperature=0, top_p=1.0, max_repeats=0, max_tokens=12)
    expected = "".join(event.text for event in client.model.generate(Request(ids, sampling)))
    body = {"prompt": "To be", "max_tokens": 12, **FIELDS}
    answers = [await client.post(TEXT, body) for _ in range(4)]
    answers += await asyncio.gather(*(client.post(TEXT, body) for _ in range(12)))
    assert [answer["choices"][0]["text"] for answer in answers] == [expected] * 16


async def test_bodies_together_are_bounded(client, monkeypatch):
    monkeypatch.setattr(server, "MOST_BYTES", 100)
    assert (await client.post(TEXT, {"prompt": "To be", "max_tokens": 1}))["choices"]
    refused = await client.post(TEXT, {"prompt": "a" * 100, "max_tokens": 1})
    assert (refused["status"], refused["error"]["code"]) == (503, "busy")
    assert (await client.post(TEXT, {"prompt": "To be", "max_tokens": 1}))["choices"]


async def test_traffic_leaves_nothing_behind(client):
    """What the server keeps is bounded: the running batch, and the keys and values of 8 texts."""

    async def traffic(round):
        for number in range(8):
            prompt = {"prompt": f"To be {round} {number}", "max_tokens": 2, "seed": number}
            fields = {"echo": number % 2 == 0, "logprobs": 2}
            assert (await client.post(TEXT, prompt | fields))["choices"]
            await client.post(TEXT, {"prompt": ""})
            await client.stream("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2})
        gc.collect()
        return len(gc.get_objects())

    await traffic(0)
    sizes = [await traffic(round) for round in (1, 2, 3)]
    assert min(sizes[1:]) - sizes[0] < 200, sizes


MESSAGES = [{"role": "user", "content": "Hi"}]


async def test_a_page_of_a_known_origin_reads_a_stream(tiny_folder):
    access = server.Access(frozenset({"127.0.0.1"}), "", frozenset({"http://page.example"}))
    model = load_model(str(tiny_folder), precision="float32", device="cpu")
    async with serving(model, access) as client:
        url, headers = client.address + TEXT, {"Origin": "http://page.example"}
        wanted = headers | {"Access-Control-Request-Headers": "authorization, x-stainless-os"}
        async with client.session.options(url, headers=wanted) as response:
            assert response.headers["Access-Control-Allow-Headers"].endswith("x-stainless-os")
        body = {"prompt": "To be", "max_tokens": 2, "stream": True}
        async with client.session.post(url, json=body, headers=headers) as response:
            assert response.headers["Access-Control-Allow-Origin"] == "http://page.example"
