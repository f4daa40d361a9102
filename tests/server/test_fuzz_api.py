"""Hostile requests at random: wrong keys, hosts and origins, broken bodies, schemas, patterns and
grammars, and clients that are slow or leave at any byte.

Each ends within its bound, none opens what it has no right to, errors repeat no text, and when all
are gone, nothing of them is left and the next reply is as it was. `pytest -m long` makes thousands.
"""

import asyncio
import json
import random
import socket
import struct
import threading
from collections import Counter
from contextlib import suppress

import pytest
from api_server import serving
from random_constraints import PARTS, random_pattern, random_schema

from chatapp.engine.models.loading import load_model
from chatapp.server import server
from chatapp.server.server import Access

MARK, KEY, BOUND = "walrus secret", "sesame-open", 60
ACCESS = Access(frozenset({"127.0.0.1"}), KEY, frozenset({"http://page.example"}))
PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/detokenize"]
PATHS += ["/v1/models", "/v1/models/tiny", "/tokenizer_info"]
MESSAGES = [{"role": "user", "content": MARK}]
BODY = {"prompt": MARK, "messages": MESSAGES, "input": MARK, "max_tokens": 2, "seed": 1}
VALUES = [
    None,
    True,
    -1,
    0,
    10**400,
    1e308,
    "",
    MARK,
    "\ud800",
    "\0",
    [],
    {},
    [[MARK]],
    [MESSAGES] * 3,
]
VALUES += [{MARK: {MARK: MARK}}, [None], [-1], [2**63], "x" * 3_000, {"type": MARK}, "tiny", 2.5]
KEYS = "model prompt messages input n stop temperature top_p top_k seed logprobs echo tools"
KEYS += " tool_choice response_format structured_outputs stream stream_options max_tokens"
KEYS += " logit_bias suffix user"
GRAMMARS = [
    'start: "a" | start',
    "start: /a+/",
    "start: x",
    "start: start start",
    'start: "',
    "%%",
    "",
]


def request(dice, *, path="", host="127.0.0.1", origin="", key=KEY, data=b""):
    lines = [b"POST" if data else b"GET", (path or dice.choice(PATHS)).encode(), b"HTTP/1.1"]
    head = [b" ".join(lines), b"Host: " + host.encode("latin-1")]
    head += [b"Origin: " + origin.encode("latin-1")] if origin else []
    head += [b"Authorization: Bearer " + key.encode("latin-1")] if key is not None else []
    size = [b"Content-Length: %d" % len(data), b"Content-Type: application/json"] if data else []
    return b"\r\n".join([*head, *size, b"Connection: close", b"", data])


def mutated(dice, text):
    """The text with a few characters changed, doubled or gone."""
    parts = list(text)
    for _ in range(dice.randint(1, 3)):
        place = dice.randrange(len(parts) + 1)
        parts[place : place + dice.randrange(3)] = dice.choice(
            ["", "\xff", ".", "@", "/", "A", "0"]
        )
    return "".join(parts)


def trespass(dice):
    """A request that lacks one right: its host, its origin or its key is another."""
    changed = {"host": "127.0.0.1", "origin": "http://page.example", "key": KEY}
    which = dice.choice(list(changed))
    while (other := mutated(dice, changed[which]).strip()) in ("", changed[which]):
        pass
    return request(dice, **(changed | {which: other}))


def broken(dice):
    """A body with wrong values, or wrong bytes."""
    wrong = {key: dice.choice(VALUES) for key in dice.sample(KEYS.split(), dice.randint(1, 4))}
    data = json.dumps(BODY | wrong).encode()
    if dice.random() < 0.3:
        place = dice.randrange(len(data))
        data = data[:place] + dice.randbytes(dice.randrange(4)) + data[place + dice.randrange(9) :]
    return request(dice, path=dice.choice(PATHS[:5]), data=data)


def constrained(dice):
    """A request for a form: a schema, a pattern or a grammar, as a rule with a fault."""
    schema = json.dumps(random_schema(dice))
    text = schema if dice.random() < 0.3 else schema.replace(*dice.choice(FAULTS))
    with suppress(ValueError):
        text = json.loads(text)
    pattern = random_pattern(dice) + dice.choice(
        ["", "(", "{9999}", "(?=a)", "\\1", "[^\0]", *PARTS]
    )
    grammar = dice.choice(GRAMMARS) + dice.choice(["", "\nx: y", "\nstart: /(/", "\n" * 99])
    form = dice.choice([{"json": text}, {"regex": pattern}, {"grammar": grammar}, {"json": MARK}])
    body = BODY | {"structured_outputs": form, "max_tokens": dice.choice([1, 3, 30])}
    return request(dice, path=PATHS[dice.randrange(2)], data=json.dumps(body).encode())


FAULTS = [
    ('"type"', '"tpye"'),
    ('"string"', '"strnig"'),
    ("{", "["),
    (":", ": {}, "),
    ("1", "1e999"),
]
FAULTS += [('"required": [', '"required": [1, '), ('"items": ', '"items": {"$ref": "#"}, "x": ')]


async def answer(address, data, dice, *, leaves=False):
    """The answer to bytes; nothing for a client that leaves, at some byte of its own or of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rsplit(":", 1)[1]))
    try:
        sent = dice.randrange(len(data)) if leaves and dice.random() < 0.5 else len(data)
        writer.write(data[:sent])
        if leaves:
            with suppress(asyncio.IncompleteReadError):
                await reader.readexactly(dice.randrange(600) if sent == len(data) else 0)
            if dice.random() < 0.5:  # a reset instead of an end
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, linger
                )
            return b""
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def attack(client, dice, ended):
    kind = dice.choice(["trespass", "broken", "constrained", "leaves"])
    if kind == "trespass":
        data = trespass(dice)
    elif kind == "leaves":
        body = BODY | {"stream": dice.random() < 0.7, "max_tokens": 40, "n": dice.randint(1, 4)}
        data = request(dice, path=PATHS[dice.randrange(2)], data=json.dumps(body).encode())
    else:
        data = broken(dice) if kind == "broken" else constrained(dice)
    text = await asyncio.wait_for(
        answer(client.address, data, dice, leaves=kind == "leaves"), BOUND
    )
    status = int(text.split()[1]) if text else 0
    ended[kind, status] += 1
    if kind == "trespass":
        assert status in (0, 400, 401, 403), (data, text[:300])
    assert status < 500 or status == 503, (data, text[:300])
    if status >= 400 and b'"model"' not in data:
        assert MARK.encode() not in text, (data, text[:300])


async def bombard(folder, seed, count):
    model = load_model(str(folder), precision="float32", device="cpu")
    async with serving(model, ACCESS) as client:
        headers, ended = {"Authorization": f"Bearer {KEY}"}, Counter()
        good = {"prompt": "To be", "max_tokens": 9, "temperature": 0}

        async def reply():
            return (await client.post(PATHS[0], good, headers=headers))["choices"][0]["text"]

        expected = await reply()
        tasks, threads = len(asyncio.all_tasks()), threading.active_count()
        for start in range(0, count, 16):
            numbers = range(start, min(count, start + 16))
            dice = [random.Random(f"{seed} {number}") for number in numbers]
            await asyncio.gather(*(attack(client, each, ended) for each in dice))
        assert await reply() == expected
        for _ in range(100):  # replies of those that have left end at their next token
            if len(asyncio.all_tasks()) <= tasks:
                break
            await asyncio.sleep(0.05)
        assert len(asyncio.all_tasks()) <= tasks
        assert threading.active_count() <= threads + 32  # the loop's own threads
        worker = client.service.worker
        assert [*worker._active, *worker._waiting] == []
    return ended


LONG = [pytest.mark.long, pytest.mark.timeout(36_000)]


@pytest.mark.parametrize(
    ("seed", "count"), [("gate", 160), pytest.param("long", 8_000, marks=LONG)]
)
async def test_hostile_requests_open_nothing_and_leave_nothing(
    tiny_folder, monkeypatch, seed, count
):
    monkeypatch.setattr(server, "SILENCE", 2.0)
    ended = await bombard(tiny_folder, seed, count)
    assert sum(ended.values()) == count
    for kind in ("broken", "constrained"):
        assert ended[kind, 200]
        assert ended[kind, 400]
    assert ended["trespass", 403]
    assert ended["trespass", 401]


async def test_a_form_that_only_the_models_tokens_make_too_dear_ends_no_other_reply(tiny_folder):
    model = load_model(str(tiny_folder), precision="float32", device="cpu")
    async with serving(model, ACCESS) as client:
        dear = BODY | {"structured_outputs": {"regex": "é{2,3}{9999}"}}
        long, headers = BODY | {"max_tokens": 60}, {"Authorization": f"Bearer {KEY}"}
        reply, refused = await asyncio.gather(
            *(client.post(PATHS[0], body, headers=headers) for body in (long, dear))
        )
    assert reply["choices"][0]["text"]
    assert refused["status"] == 400
    assert "the pattern cannot be followed" in refused["error"]["message"]
