"""The inside of a model over HTTP: what the microscope says, and replies of a changed model."""

import asyncio
import json
import time
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import pytest
from api_server import serving
from test_api_refusals import CHAT, TEXT, USER

from chatapp.engine.decoder.interventions import parse_parts, switched_off
from chatapp.engine.model import Request, Sampling
from chatapp.lab.steering import Direction, directions_dir, save_direction
from chatapp.lab.view import Subject
from chatapp.lab.views import VIEWS
from chatapp.lab.views.text_views import NextToken
from chatapp.open_model import OpenModel
from chatapp.server import inspecting, service
from chatapp.server.server import Access

LOOK = "/v1/inspect"
OFF = {"ablate": ["0.1", "1.mlp"]}
FIRST = {"prompt": "one two three", "max_tokens": 6, "temperature": 0}


def plain(value):
    return json.loads(json.dumps(value))


async def test_views_are_those_of_the_door_for_python(client):
    views = {"why": {"token": 1}, "next": {}, "layers": {"top": 2}, "heads": {}}
    answer = await client.post(LOOK, {"prompt": "one two three", "views": views})
    inspection = OpenModel(client.model).inspect("one two three")
    assert answer["why"] == plain(inspection.why(token=1).to_json())
    assert answer["heads"] == plain(inspection.heads().to_json())
    assert answer["next"] == plain(inspection.next().to_json())
    assert len(answer["layers"]) == 3  # the embeddings and two layers, of every token
    wanted = [inspection.layers(top=2, token=place).to_json() for place in range(13)]
    assert answer["layers"] == plain(list(zip(*wanted, strict=True)))
    assert "changes" not in answer

    changed = await client.post(LOOK, {"prompt": "one two three", "views": ["why"], "changes": OFF})
    assert changed["changes"] == "without 0.1 1.mlp"
    with OpenModel(client.model).changed("0.1", "1.mlp") as model:
        assert changed["why"] == plain(model.inspect("one two three").why().to_json())
    assert changed["why"] != plain(inspection.why().to_json())


async def test_every_view_answers_or_says_in_a_sentence_why_not(client):
    values = {"word": "a", "head": "0.1", "state": "0", "mlp": "0.mlp", "parts": "all"}
    refused = {"experts", "cross_attention", "circuit"}  # this model has none
    for name, view in VIEWS.items():
        needed = {f.name: values[f.name] for f in fields(view.Options) if f.default is MISSING}
        options = {"patch": {"noise": "1"}, "positions": {"other": "three two one"}}.get(
            name, needed
        )
        text = {"messages": [USER]} if name in ("prompt", "parts") else {"prompt": "one two three"}
        answer = await client.post(LOOK, text | {"views": {name: options}})
        assert (name in answer) == (name not in refused), answer
        if name in refused:
            assert (answer["status"], "\n" in answer["error"]["message"]) == (400, False)


async def test_a_changed_model_replies_beside_others_and_says_so(client, tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    plain_reply = await client.post(TEXT, FIRST)
    bodies = [FIRST, FIRST | {"changes": OFF}, FIRST | {"max_tokens": 40}]
    before, changed, long = await asyncio.gather(*(client.post(TEXT, body) for body in bodies))
    assert before["choices"] == plain_reply["choices"]
    assert long["choices"][0]["text"].startswith(plain_reply["choices"][0]["text"])
    assert (changed["changes"], "changes" in before) == ("without 0.1 1.mlp", False)
    assert changed["choices"][0]["text"] == drawn(client.model, OFF["ablate"])
    assert changed["choices"] != plain_reply["choices"]

    shape = client.model.decoder.architecture  # type: ignore[attr-defined]
    vector = np.ones(shape.width, dtype=np.float32)
    save_direction(Direction("calm", {0: vector}), directions_dir() / "calm.gguf", "gpt2")
    steered = {"messages": [USER], "max_tokens": 4, "changes": {"steer": {"calm": 0.5}}}
    assert (await client.post(CHAT, steered))["changes"] == "with calm 0.5"
    events = [json.loads(event) for event in (await client.stream(CHAT, steered))[:-1]]
    assert {event["changes"] for event in events} == {"with calm 0.5"}


def drawn(model, parts):
    """The reply without parts, drawn here."""
    shape = model.decoder.architecture  # type: ignore[attr-defined]
    request = Request(
        model.tokenizer.encode(FIRST["prompt"]),  # type: ignore[arg-type]
        Sampling(temperature=0, max_tokens=6),
        interventions=switched_off(parse_parts(",".join(parts), shape)),
    )
    return "".join(event.text for event in model.generate(request))


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (LOOK, {"prompt": "a"}, "views"),
        (LOOK, {"views": ["next"]}, "either prompt or messages"),
        (LOOK, {"prompt": "", "views": ["next"]}, "empty"),
        (LOOK, {"prompt": "a", "views": ["wy"]}, "did you mean"),
        (LOOK, {"prompt": "a", "views": {"why": {"anser": "b"}}}, "answer"),
        (LOOK, {"prompt": "a", "views": {"layers": {"top": 0}}}, "1"),
        (LOOK, {"prompt": "a", "views": {"layers": {"top": "x"}}}, "whole number"),
        (LOOK, {"prompt": "a", "views": {"why": {"token": 9}}}, "token is 9"),
        (LOOK, {"prompt": "a", "views": {"heads": {"texts": "/etc/passwd"}}}, "no request may"),
        (LOOK, {"prompt": "a", "views": {"heads": {"against": "m"}}}, "no request may"),
        (LOOK, {"prompt": "a b " * 60, "views": ["attention"]}, "at most"),
        (TEXT, FIRST | {"changes": {"ablate": ["9.9"]}}, "there is no layer 9"),
        (TEXT, FIRST | {"changes": {"ablate": ["3"] * 99}}, "64"),
        (TEXT, FIRST | {"changes": {"steer": {"../x.gguf": 1.0}}}, "changes.steer"),
        (TEXT, FIRST | {"changes": {"steer": {"gone": 1.0}}}, "no such direction"),
        (TEXT, FIRST | {"changes": {"ablat": ["3"]}}, "ablat"),
        (TEXT, FIRST | {"changes": OFF, "echo": True, "max_tokens": 0}, "/v1/inspect"),
    ],
)
async def test_a_mistake_is_a_sentence(client, path, body, words):
    answer = await client.post(path, body)
    assert answer["status"] == 400
    assert words in answer["error"]["message"]


async def test_strangers_stay_outside_unless_allowed(tiny_folder, client):
    page, key = {"Origin": "http://page.example"}, {"Authorization": "Bearer k"}
    origins = frozenset({"http://page.example"})
    look, change = (LOOK, {"prompt": "a", "views": ["next"]}), (TEXT, FIRST | {"changes": OFF})
    for access, headers in (
        (Access(frozenset(), "k"), key),
        (Access(frozenset({"127.0.0.1"}), "", origins), page),
    ):
        for inside, status in ((False, 403), (True, None)):
            allowed = Access(access.hosts, access.key, access.origins, inside)
            async with serving(client.model, allowed) as other:
                for path, body in (look, change):
                    answer = await other.post(path, body, headers=headers)
                    assert answer.get("status") == status
                    assert status is None or "--inside" in answer["error"]["message"]
                assert "choices" in await other.post(TEXT, FIRST, headers=headers)


class Endless(NextToken):
    """A view that never comes to an end by itself. running: how many are."""

    running = 0

    @classmethod
    def look(cls, subject: Subject, options: Any) -> "Endless":
        Endless.running += 1
        try:
            while True:
                time.sleep(0.005)
                subject.progress(0, 1)
        finally:
            Endless.running -= 1


async def test_views_end_in_time_or_with_their_client_and_hold_up_no_reply(client, monkeypatch):
    async def wait_for(running):
        async with asyncio.timeout(30):
            while Endless.running != running:
                await asyncio.sleep(0.01)

    monkeypatch.setitem(VIEWS, "endless", Endless)
    body = {"prompt": "one two", "views": ["endless"]}
    looking = asyncio.create_task(client.post(LOOK, body))
    await wait_for(1)
    assert "choices" in await client.post(TEXT, FIRST)
    looking.cancel()
    await wait_for(0)
    monkeypatch.setattr(service, "_LONGEST_LOOK", 0.1)
    assert "more than 0 seconds" in (await client.post(LOOK, body))["error"]["message"]
    monkeypatch.setattr(inspecting, "MOST_TOKENS", 1)
    assert "at most 1" in (await client.post(LOOK, body))["error"]["message"]
