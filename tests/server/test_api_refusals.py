"""Mistakes of clients get a sentence in OpenAI's form and a status below 500."""

import asyncio
import json
import random
import threading
import time
from pathlib import Path

import pytest
from api_server import serving
from fakes import ScriptedModel
from jsonschema import Draft202012Validator

import chatapp
from chatapp.engine.models.loading import load_model
from chatapp.server import prompts, worker
from chatapp.server.bodies import KEYS, POSTS
from chatapp.server.server import LARGEST_BODY, Access

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "Hi"}
SAME = {"type": "function", "function": {"name": "f"}}
FORM = {"type": "json_schema"}
CALLING = {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}
BROKEN = {"type": "function", "function": {"name": "f", "parameters": {"type": "no such"}}}


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        (TEXT, {"prompt": 3}, "prompt", "string"),
        (TEXT, {"prompt": ""}, "prompt", "empty"),
        (TEXT, {"prompt": []}, "prompt", "no text"),
        (TEXT, {"prompt": [1, 10**9]}, "prompt", "vocabulary"),
        (TEXT, {"prompt": "a", "n": 0}, "n", "from 1 to 16"),
        (TEXT, {"prompt": "a", "temperature": "hot"}, "temperature", "number"),
        (TEXT, {"prompt": "a", "max_tokens": 0}, "max_tokens", "echo"),
        (TEXT, {"prompt": "a", "logprobs": 99}, "logprobs", "20"),
        (TEXT, {"prompt": ["a"] * 99}, "prompt", "at most"),
        (TEXT, {"prompt": "a b " * 300}, "prompt", "tokens long"),
        (CHAT, {"messages": []}, "messages", "expected 1 or more"),
        (CHAT, {"messages": [{"role": "king", "content": "x"}]}, "messages.0.role", "user"),
        (CHAT, {"messages": [{"role": "assistant", "content": "x"}]}, "messages", "begin"),
        (CHAT, {"messages": [USER, CALLING]}, "messages", "the last message calls"),
        (CHAT, {"messages": [USER | {"content": None}]}, "messages.0.content", "no content"),
        (TEXT, {"prompt": "a", "logit_bias": {"a": 1}}, "logit_bias", "ids below"),
        (TEXT, {"prompt": "a", "logit_bias": {"9" * 9999: 1}}, "logit_bias", "ids below"),
        (TEXT, {"prompt": "a", "logit_bias": {"1": 101}}, "logit_bias", "100"),
        (TEXT, {"prompt": "a", "stop": ["a"] * 65}, "stop", "64"),
        (TEXT, {"prompt": "a", "min_tokens": 3}, "min_tokens", "not supported"),
        (CHAT, {"messages": [USER, {"role": "tool", "content": "x"}]}, "messages", "no call"),
        (CHAT, {"messages": [USER | {"content": [{"type": "image_url"}]}]}, "messages", "text"),
        (CHAT, {"messages": [USER], "response_format": FORM}, "response_format.json_", "missing"),
        (CHAT, {"messages": [USER], "tool_choice": "always"}, "tool_choice", "required"),
        (CHAT, {"messages": [USER], "tool_choice": "required"}, "tool_choice", "not in"),
        (CHAT, {"messages": [USER], "tools": [SAME, SAME]}, "tools", "'f' twice"),
        (CHAT, {"messages": [USER], "top_p": float("nan")}, "", "not JSON"),
        (CHAT, {"messages": [USER], "tools": [BROKEN], "tool_choice": "required"}, "tools", "type"),
        ("/v1/detokenize", {"tokens": [-1]}, "tokens", "vocabulary"),
        ("/v1/tokenize", {}, "prompt", "neither"),
        ("/v1/embeddings", {}, "input", "is missing"),
    ],
)
async def test_a_mistake_is_named(client, path, body, param, words):
    answer = await client.post(path, body)
    error = answer["error"]
    assert answer["status"] == 400
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert (error["param"] or "").startswith(param)
    assert words in error["message"]


async def test_a_prompt_that_is_too_long_has_both_numbers(client):
    ids = client.model.tokenizer.encode("a b " * 300)
    answer = await client.post(TEXT, {"prompt": ids})
    assert str(len(ids)) in answer["error"]["message"]
    assert str(client.model.context) in answer["error"]["message"]
    assert answer["error"]["code"] == "context_length_exceeded"
    long = await client.post(CHAT, {"messages": [USER | {"content": "a b " * 300}]})
    assert long["status"] == 400
    assert str(client.model.context) in long["error"]["message"]


LONG = "hello world " * 80_000


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tokenize", {"prompt": LONG}, "more than 256 tokens"),
        ("/tokenize", {"prompt": "a" * 900_000}, "more than 256 tokens"),
        ("/tokenize", {"messages": [USER | {"content": LONG}]}, "more than 256 tokens"),
        ("/detokenize", {"tokens": [5] * 500_000}, "more than the model's window"),
        (TEXT, {"prompt": LONG}, "more than 256 tokens"),
        (TEXT, {"prompt": [{}] * 200_000}, "prompt is wrong"),
        (TEXT, {"prompt": [[]] * 4_000_000}, "more than 262,144 of '['"),
        (TEXT, {"prompt": [{}] * 4_000_000}, "more than 262,144 of '{'"),
        (TEXT, {f"k{n}": 0 for n in range(1_000_000)}, "more than 262,144 of ':'"),
        (TEXT, {"prompt": [0] * 5_000_000}, "more than 2,097,152 of ','"),
        (CHAT, {"messages": [0] * 2_000_000}, "messages.0 is wrong"),
        (CHAT, {"messages": [USER | {"content": ""}] * 100_000}, "more than 4,096"),
        (CHAT, {"messages": [USER | {"content": "a " * 500}] * 3_000}, "more than 256 tokens"),
        ("/embeddings", {"input": ["a"] * 100_000}, "more than 2,048 texts"),
        (TEXT, {"prompt": ["a"] * 100_000, "echo": True, "max_tokens": 0}, "2,048 texts"),
        (TEXT, {"prompt": ["a"] * 200, "n": 16, "echo": True, "max_tokens": 0}, "3,200 texts"),
        (TEXT, {"prompt": ["a " * 80] * 2000, "echo": True, "max_tokens": 0}, "at most 262,144"),
        (
            TEXT,
            {"prompt": ["a " * 100] * 500, "echo": True, "max_tokens": 0, "logprobs": 5},
            "log-probabilities; expected at most 262,144",
        ),
    ],
)
async def test_no_text_and_no_answer_is_without_bound(client, path, body, words):
    """Nor does one keep the event loop, which answers everybody, for longer than a moment."""
    longest, done = 0.0, False

    async def watch():
        nonlocal longest
        while not done:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)

    watching = asyncio.create_task(watch())
    answer = await client.post(path, body)
    done = True
    await watching
    assert answer["status"] == 400
    assert words in answer["error"]["message"]
    assert longest < 2


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
async def test_a_body_is_what_its_headers_say(client, coding):
    headers = {"Content-Encoding": coding}
    async with client.session.post(client.address + TEXT, data=b"no", headers=headers) as answer:
        assert answer.status == 400


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"a":' * 50_000])
async def test_broken_bodies(client, data):
    async with client.session.post(client.address + TEXT, data=data) as response:
        assert response.status == 400
        assert "body" in (await response.json())["error"]["message"]


@pytest.mark.parametrize("levels", [200, 900, 980])
async def test_deep_values_never_fail(client, levels):
    """Each part of the program reads fewer levels than the one before it."""
    deep = '{"properties": {"a": ' * (levels // 2) + "{}" + "}}" * (levels // 2)
    tools = [{"type": "function", "function": {"name": "f", "parameters": "DEEP"}}]
    form = {"type": "json_schema", "json_schema": {"schema": "DEEP"}}
    call = {"id": "1", "function": {"name": "f", "arguments": deep}}
    called = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "x"}]
    chat = {"messages": [USER], "max_tokens": 2}
    for body in (
        chat | {"tools": tools},
        chat | {"tools": tools, "tool_choice": "required"},
        chat | {"response_format": form},
        chat | {"messages": [USER, *called]},
    ):
        data = json.dumps(body).replace('"DEEP"', deep)
        async with client.session.post(client.address + CHAT, data=data) as response:
            assert response.status < 500, (levels, list(body), await response.text())


async def test_a_body_that_is_too_large(client):
    async with client.session.post(
        client.address + TEXT, data=b" " * (LARGEST_BODY + 1)
    ) as response:
        assert response.status == 413
        assert "error" in await response.json()


async def test_unknown_paths_methods_and_models(client):
    assert (await client.get("/v1/nothing"))["status"] == 404
    assert (await client.get(TEXT))["status"] == 405
    answer = await client.post(TEXT, {"prompt": "a", "model": "gpt-9"})
    assert answer["status"] == 404
    assert answer["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", KEYS)
async def test_each_key_of_the_reference_acts_or_is_named(client, path):
    """A header names what is ignored; what would change the answer and does not act is refused."""
    bare = {"max_tokens": 2, "prompt": "a", "messages": [USER], "input": "a"}
    bare = {key: bare[key] for key in bare if key in KEYS[path]["supported"].split()}
    assert set(KEYS[path]["supported"].split()) <= set(POSTS[path].model_fields)
    row = " | ".join([f"`{path}`", *(" ".join(sorted(of.split())) for of in KEYS[path].values())])
    assert f"\n| {row} |\n" in (Path(chatapp.__file__).parent / "docs" / "servers.md").read_text(
        "utf-8"
    )
    for standing, names in KEYS[path].items():
        for name in names.split():
            value = {"model": "tiny", "stream_options": {"include_usage": True}}.get(name, "x")
            sent = bare | ({} if standing == "supported" and name in bare else {name: value})
            async with client.session.post(f"{client.address}/v1{path}", json=sent) as answer:
                document = await answer.json()
            ignored = answer.headers.get("X-Ignored-Keys", "")
            if standing == "ignored":
                assert (answer.status, ignored) == (200, name)
            elif standing == "refused":
                assert (answer.status, document["error"]["param"]) == (400, name)
            else:  # a wrong value is noticed
                assert (answer.status, ignored) == (200, "") or name in document["error"]["param"]
                assert answer.status == 400 or name in {*bare, "model", "stop", "stream_options"}


async def test_unknown_keys_are_named_and_cannot_fill_the_header(client, caplog):
    fields = {"prompt": "a", "max_tokens": 2, "best_of": 1, "suffix": None, "logit_bias": {}}
    sent = fields | {"\x1b[2J\r\nX": 1, "stream_options": {"a": 1}}
    with caplog.at_level("INFO"):
        async with client.session.post(client.address + TEXT, json=sent) as answer:
            assert answer.headers["X-Ignored-Keys"] == "??2J??X, best_of, stream_options.a, suffix"
    assert "/completions: ignored keys: ??2J??X, " in caplog.text
    many = fields | {f"{n}é" * 50: n for n in range(1000)}
    async with client.session.post(client.address + TEXT, json=many) as answer:
        assert answer.headers["X-Ignored-Keys"].endswith(", and 982 more")
        assert len(answer.headers["X-Ignored-Keys"]) < 2000


async def test_a_mistake_before_a_stream_is_an_ordinary_answer(client):
    answer = await client.post(TEXT, {"prompt": "", "stream": True})
    assert answer["status"] == 400


async def test_random_requests_never_fail(client):
    """The server's own description, with random values for its fields."""
    generator = random.Random(0)
    paths = (await client.get("/v1/openapi.json"))["paths"]
    texts = ["", "a", "\ud800", ["a"]]
    values = [*texts, None, 0, -1, 2.5, True, [], [1], {}, {"type": "x"}, 10**30]
    names = (
        "prompt messages n stop echo logprobs top_logprobs seed tools tool_choice temperature "
        "stream_options input tokens logit_bias frequency_penalty suffix"
    ).split()
    whole = {"max_tokens": 2, "prompt": "a", "messages": [USER], "input": "a"}
    for path in (path for path, answers in paths.items() if "post" in answers):
        for _ in range(40):
            body = whole | {"tokens": [1]}
            for _ in range(generator.randint(1, 3)):
                body[generator.choice(names)] = generator.choice(values)
            data = json.dumps(body)
            async with client.session.post(client.address + path, data=data) as response:
                assert response.status < 500, (path, body, await response.text())


async def test_the_description_is_a_schema(client):
    description = await client.get("/openapi.json")
    for schema in description["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


async def test_a_full_queue_is_told_to_wait(tiny_folder, monkeypatch):
    monkeypatch.setattr(worker, "MOST_WAITING", 2)
    async with serving(ScriptedModel(["one two three"], delay=0.05)) as client:
        body = {"prompt": "a", "max_tokens": 3}
        answers = await asyncio.gather(*(client.post(TEXT, body) for _ in range(8)))
    refused = [answer for answer in answers if answer.get("status") == 503]
    assert refused
    assert refused[0]["error"]["code"] == "busy"
    assert sum("choices" in answer for answer in answers) >= 2


async def test_an_unforeseen_error_keeps_its_text_in_the_log(tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))

    def fail(prompt):
        raise RuntimeError("secret /home/me")

    async with serving(ScriptedModel(fail)) as client:
        answer = await client.post(TEXT, {"prompt": "a"})
        assert answer["status"] == 500
        assert "secret" not in json.dumps(answer)
        assert "secret" in "".join(path.read_text() for path in tmp_path.rglob("*.log"))
        assert (await client.get("/health"))["status"] == "ok"


async def test_the_key_opens_what_is_not_open(tiny_folder):
    model = load_model(str(tiny_folder), precision="float32", device="cpu")
    access = Access(frozenset({"127.0.0.1"}), "secret", frozenset({"http://page.example"}))
    async with serving(model, access) as client:
        assert (await client.get("/v1/models"))["status"] == 401
        right = {"Authorization": "Bearer secret"}
        assert (await client.get("/v1/models", headers=right))["data"]
        assert (await client.get("/health"))["status"] == "ok"
        page = {"Origin": "http://page.example"}
        assert (await client.session.options(client.address, headers=page)).status == 204


async def test_forms_that_take_long_to_compile_hold_up_no_other_request(client, monkeypatch):
    compiling = threading.Event()
    monkeypatch.setattr("chatapp.server.prompts._compiled", lambda *_: compiling.wait(60) and None)
    form = {"prompt": "a", "max_tokens": 1, "structured_outputs": {"regex": "a"}}
    waiting = [asyncio.create_task(client.post(TEXT, form)) for _ in range(70)]
    await asyncio.sleep(0.5)
    plain = client.post(TEXT, {"prompt": "a", "max_tokens": 1})
    assert "choices" in await asyncio.wait_for(plain, 10)
    compiling.set()
    answers = await asyncio.gather(*waiting)
    assert sum(answer.get("status") == 503 for answer in answers) == 6


async def test_a_small_form_waits_for_no_large_ones(client, monkeypatch):
    order, compiling, compiled = [], threading.Event(), prompts._compiled

    def slow(model, make, param):
        constraint = compiled(model, make, param)
        order.append(len(constraint.source))
        return compiling.wait(60) and constraint

    monkeypatch.setattr("chatapp.server.prompts._compiled", slow)
    waiting = []
    for size in (9, 900, 800, 5, 700, 20):
        form = {"prompt": "a", "max_tokens": 1, "structured_outputs": {"regex": "a" * size}}
        waiting.append(asyncio.create_task(client.post(TEXT, form)))
        await asyncio.sleep(0.2)
    compiling.set()
    await asyncio.gather(*waiting)
    assert order == [9, 5, 20, 700, 800, 900]


def test_every_list_of_a_request_is_read_up_to_its_first_mistake():
    """A forgotten one makes a message for each of a million wrong items, which takes minutes."""

    def lists(schema):
        if isinstance(schema, dict):
            if schema.get("type") == "list":
                yield schema
            for part in schema.values():
                yield from lists(part)
        elif isinstance(schema, list | tuple):
            for part in schema:
                yield from lists(part)

    found = [each for kind in POSTS.values() for each in lists(kind.__pydantic_core_schema__)]
    assert len(found) > 10
    assert all(each.get("fail_fast") for each in found)
