"""Completions, chats, scores and tokens over HTTP: what the model gives, in OpenAI's form."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from api_server import serving

from chatapp.dialogue import turn
from chatapp.dialogue.events import Options
from chatapp.dialogue.writers.choosing import writer_for
from chatapp.dialogue.writers.prompt import Exchange
from chatapp.engine.events import Finished, Token
from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.prompting.template import PLAIN
from chatapp.server import service

GREEDY = {"temperature": 0, "top_p": 1.0}


def alone(client, text, most, **sampling):
    """What the model writes without a server."""
    ids = client.model.tokenizer.encode(text)
    chosen = Sampling(
        **{"temperature": 0, "top_p": 1.0, "max_repeats": 0} | sampling, max_tokens=most
    )
    return "".join(event.text for event in client.model.generate(Request(ids, chosen)))


GUIDE = Path(service.__file__).parents[1] / "docs" / "servers.md"
REQUESTS: dict[str, dict[str, Any]] = {
    "/completions": {"prompt": "To be", "max_tokens": 1},
    "/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/embeddings": {"input": "To be"},
    "/tokenize": {"prompt": "To be"},
    "/detokenize": {"tokens": [1, 2]},
    "/inspect": {"prompt": "To be", "views": ["tokens"]},
}
"""A request to each path that takes a body."""


async def test_every_path_of_the_description_answers(client):
    guide = GUIDE.read_text(encoding="utf-8")
    for described, methods in (await client.get("/openapi.json"))["paths"].items():
        path = described.removeprefix("/v1")
        in_guide = path.replace("{name}", "NAME") in guide
        assert in_guide, f"name {path} in {GUIDE}"
        assert "post" not in methods or path in REQUESTS, f"give {path} a request in REQUESTS"
        for place in (path.replace("{name}", "tiny"), described.replace("{name}", "tiny")):
            ask = client.post(place, REQUESTS[path]) if "post" in methods else client.get(place)
            assert "error" not in await ask, place


async def test_a_completion_is_what_the_model_writes(client):
    answer = await client.post("/v1/completions", {"prompt": "To be", "max_tokens": 9, **GREEDY})
    (choice,) = answer["choices"]
    assert choice["text"] == alone(client, "To be", 9)
    assert choice["finish_reason"] in ("length", "stop")
    size = len(client.model.tokenizer.encode("To be"))
    assert answer["usage"]["prompt_tokens"] == size
    assert answer["usage"]["total_tokens"] == size + answer["usage"]["completion_tokens"]
    assert answer["model"] == "tiny"
    assert answer["object"] == "text_completion"


async def test_texts_ids_and_lists_of_them_give_the_same(client):
    texts = ["To be", "or not"]
    ids = [client.model.tokenizer.encode(text) for text in texts]
    fields = {"max_tokens": 6, **GREEDY}
    answers = [
        await client.post("/completions", {"prompt": prompt} | fields)
        for prompt in (texts, ids, texts[0], ids[0])
    ]
    written = [[choice["text"] for choice in answer["choices"]] for answer in answers]
    assert written[0] == written[1] == [alone(client, text, 6) for text in texts]
    assert written[2] == written[3] == written[0][:1]


async def test_several_replies_have_seeds_of_their_own(client):
    fields = {"prompt": "To be", "max_tokens": 8, "temperature": 1.0, "top_p": 1.0, "seed": 5}
    answer = await client.post("/v1/completions", fields | {"n": 3})
    texts = [choice["text"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    sampling = {"temperature": 1.0, "max_repeats": 4}
    assert texts == [alone(client, "To be", 8, seed=5 + n, **sampling) for n in range(3)]
    assert len(set(texts)) > 1
    one = await client.post("/v1/completions", fields)
    assert answer["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]


async def test_any_number_of_stops(client):
    whole = alone(client, "To be", 12)
    stops = [f"never {n}" for n in range(9)] + [whole[4:6]]
    fields = {"prompt": "To be", "max_tokens": 12, "stop": stops, **GREEDY}
    (choice,) = (await client.post("/v1/completions", fields))["choices"]
    assert choice["text"] == whole[: whole.index(whole[4:6])]
    assert choice["finish_reason"] == "stop"


async def test_an_echo_scores_the_prompt():
    async with serving(load_model("bundled", precision="float32", device="cpu")) as client:
        await check_echo(client, "A naïve cat, 猫, sleeps.")


async def check_echo(client, text):
    fields = {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 3}
    (choice,) = (await client.post("/v1/completions", fields))["choices"]
    logprobs = choice["logprobs"]
    ids = client.model.tokenizer.encode(text)
    (scores,) = client.model.score([(ids[:1], ids[1:])])
    assert choice["text"] == text
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == pytest.approx(scores, abs=1e-4)
    assert len(logprobs["tokens"]) == len(ids) == len(logprobs["text_offset"])
    for id, offset, best in zip(
        ids[1:], logprobs["text_offset"][1:], logprobs["top_logprobs"][1:], strict=True
    ):
        assert 1 <= len(best) <= 3
        piece = client.model.tokenizer.decode([id])
        assert "\ufffd" in piece or text[offset : offset + len(piece)] == piece
    assert any("\ufffd" in client.model.tokenizer.decode([id]) for id in ids)


async def test_prompts_with_a_common_beginning_have_their_own_scores(client):
    """What the scorer keeps of the prompt before changes nothing."""
    texts = ["To be or not to be", "To be or else", "To be or else", "To", "To be or not", "or not"]
    for text in [*texts, *reversed(texts)]:
        for top in (1, 2):
            fields = {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": top}
            (choice,) = (await client.post("/v1/completions", fields))["choices"]
            ids = client.model.tokenizer.encode(text)
            (scores,) = client.model.score([(ids[:1], ids[1:])]) if ids[1:] else ([],)
            assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(scores, abs=1e-4)
            assert [len(best) for best in choice["logprobs"]["top_logprobs"][1:]] == [top] * len(
                scores
            )


async def test_an_echo_with_a_reply_has_both(client):
    fields = {"prompt": "To be", "max_tokens": 4, "echo": True, "logprobs": 1, **GREEDY}
    (choice,) = (await client.post("/v1/completions", fields))["choices"]
    assert choice["text"] == "To be" + alone(client, "To be", 4)
    tokens, values = choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]
    assert len(tokens) == len(values) == len(client.model.tokenizer.encode("To be")) + 4
    for value, best in zip(values[-4:], choice["logprobs"]["top_logprobs"][-4:], strict=True):
        assert value == pytest.approx(max(best.values()))


async def test_the_end_of_text_is_a_token_with_its_probability(client):
    """lm-eval takes the last token off what it scores: a prompt must not lose its own."""
    ids = client.model.tokenizer.encode("To be")
    (drawn, *_) = client.model.generate(Request(ids, Sampling(temperature=0, max_tokens=1)))
    client.model.end_ids.add(drawn.id)
    fields = {"prompt": "To be", "max_tokens": 1, "echo": True, "logprobs": 1, **GREEDY}
    (choice,) = (await client.post("/v1/completions", fields))["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("To be", "stop")
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(ids) + 1
    assert logprobs["token_logprobs"][-1] == pytest.approx(drawn.logprob, abs=1e-4)
    assert logprobs["text_offset"][-1] == len("To be")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_stream_adds_up_to_the_answer(client, path):
    is_chat = "chat" in path
    text: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "Hi"}]} if is_chat else {"prompt": "Hi"}
    )
    body = text | {"max_tokens": 12, **GREEDY}
    (whole,) = (await client.post(path, body))["choices"]
    *chunks, last = await client.stream(path, body | {"stream_options": {"include_usage": True}})
    assert last == "[DONE]"
    *documents, usage = map(json.loads, chunks)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] > 0
    assert all("usage" not in document for document in documents)
    choices = [document["choices"][0] for document in documents]
    if is_chat:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        written = "".join(choice["delta"].get("content", "") for choice in choices)
        assert written == whole["message"]["content"]
    else:
        assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == whole["finish_reason"]


async def test_a_chat_is_one_string_for_the_model(client):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]
    ids = (await client.post("/tokenize", {"messages": messages}))["tokens"]
    prompt = (await client.post("/detokenize", {"tokens": ids}))["prompt"]
    assert "Be brief." in prompt
    assert "Hi" in prompt
    assert "Hello" in prompt
    assert prompt.index("Hello") < prompt.index("Bye")
    fields = {"messages": messages, "max_completion_tokens": 7, **GREEDY}
    answer = await client.post(
        "/v1/chat/completions", fields | {"logprobs": True, "top_logprobs": 2}
    )
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    content = choice["logprobs"]["content"]
    assert 0 < len(content) <= answer["usage"]["completion_tokens"]
    assert joined_bytes(content).decode() == choice["message"]["content"]
    assert all(len(token["top_logprobs"]) == 2 for token in content)


async def test_a_chats_reply_is_that_of_ask(client):
    sampling = Sampling(temperature=1.0, top_p=1.0, seed=3, max_tokens=9)
    events = turn.answer(client.model, PLAIN, "Hi", Options(sampling, system="Be brief."))
    expected = "".join(event.text for event in events)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    body = {"messages": messages, "temperature": 1.0, "top_p": 1.0, "seed": 3, "max_tokens": 9}
    (choice,) = (await client.post("/v1/chat/completions", body))["choices"]
    assert choice["message"]["content"] == expected


def joined_bytes(content):
    return bytes(byte for token in content for byte in token["bytes"])


async def test_a_character_of_several_tokens():
    """A stream has it whole, and the log-probabilities have the bytes of each of its tokens."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40}
    form = {"type": "json_schema", "json_schema": {"schema": {"const": "a 🙂 猫"}}}
    body |= {"response_format": form, "logprobs": True}
    async with serving(load_model("bundled", precision="float32", device="cpu")) as client:
        (whole,) = (await client.post("/v1/chat/completions", body))["choices"]
        *chunks, _ = await client.stream("/v1/chat/completions", body)
        for most in range(1, 12):  # one that is unfinished at the end is left out
            pattern = {"response_format": None, "structured_outputs": {"regex": '"a 🙂 猫"'}}
            short = body | {"max_tokens": most} | pattern
            (cut,) = (await client.post("/v1/chat/completions", short))["choices"]
            assert '"a 🙂 猫"'.startswith(cut["message"]["content"])
    assert whole["message"]["content"] == '"a 🙂 猫"'
    content = whole["logprobs"]["content"]
    assert joined_bytes(content) == '"a 🙂 猫"'.encode()
    assert max(map(max, (token["bytes"] for token in content))) > 127
    assert "🙂".encode() not in [bytes(token["bytes"]) for token in content]
    pieces = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert "".join(piece["delta"].get("content", "") for piece in pieces) == '"a 🙂 猫"'
    for piece in filter(lambda piece: piece["logprobs"], pieces):
        assert joined_bytes(piece["logprobs"]["content"]).decode() == piece["delta"]["content"]


async def test_a_last_message_of_the_assistant_is_continued(client):
    options = Options(Sampling(temperature=0, top_p=1.0, max_repeats=0, max_tokens=6))
    writer, exchanges = writer_for(client.model, PLAIN), [Exchange("Hi", "Well")]
    events = turn.turn(client.model, writer, exchanges, options)
    expected = "".join(event.text for event in events if isinstance(event, Token | Finished))
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]
    body = {"messages": messages, "max_tokens": 6, "logprobs": True, **GREEDY}
    (choice,) = (await client.post("/v1/chat/completions", body))["choices"]
    assert choice["message"]["content"] == expected
    assert joined_bytes(choice["logprobs"]["content"]).decode() == expected


async def test_bias_and_penalties_act_alone_and_in_a_batch(client):
    """Greedy, too: a token of -100 never comes, and one that is punished for coming comes less."""
    path, fields = "/v1/completions", {"prompt": "To be", "max_tokens": 30, **GREEDY}
    fields |= {"logprobs": 0, "return_tokens_as_token_ids": True}

    async def ids(**more):
        (choice,) = (await client.post(path, fields | more))["choices"]
        return [name.removeprefix("token_id:") for name in choice["logprobs"]["tokens"]]

    plain = await ids()
    changes = [
        {"logit_bias": {plain[0]: -100}},
        {"frequency_penalty": 2, "presence_penalty": 2},
        {"logit_bias": {plain[-1]: 100}},
    ]
    alone = [await ids(**change) for change in changes]
    assert await asyncio.gather(*(ids(**change) for change in [*changes, {}])) == [*alone, plain]
    assert plain[0] not in alone[0]
    assert len(set(alone[1])) > len(set(plain))
    assert set(alone[2]) == {plain[-1]}


async def test_a_stop_string_has_no_log_probabilities(client):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30, **GREEDY}
    whole = (await client.post("/v1/chat/completions", body))["choices"][0]["message"]["content"]
    fields = {"stop": whole[9:12], "logprobs": True}
    (cut,) = (await client.post("/v1/chat/completions", body | fields))["choices"]
    text = whole[: whole.index(whole[9:12])].rstrip()
    assert cut["message"]["content"] == text
    assert joined_bytes(cut["logprobs"]["content"]).decode() == text


TWO_DIGITS = {
    "type": "object",
    "properties": {"n": {"$ref": "#/$defs/digits"}},
    "required": ["n"],
    "additionalProperties": False,
    "$defs": {"digits": {"type": "integer", "minimum": 10, "maximum": 99}},
}


async def test_a_reply_fits_a_schema(client):
    body = {"messages": [{"role": "user", "content": "A number?"}], "max_tokens": 60, "seed": 1}
    form = {"type": "json_schema", "json_schema": {"name": "number", "schema": TWO_DIGITS}}
    answer = await client.post("/v1/chat/completions", body | {"response_format": form})
    assert 10 <= json.loads(answer["choices"][0]["message"]["content"])["n"] <= 99
    for short in ({"max_tokens": 3}, {"max_tokens": 3, "stream": True}):
        never = await client.post("/v1/chat/completions", body | {"response_format": form} | short)
        assert never["status"] == 400
        assert "no reply of at most 3 tokens fits the schema" in never["error"]["message"]
    wrong = form | {"json_schema": {"schema": {"type": "no such type"}}}
    refused = await client.post("/v1/chat/completions", body | {"response_format": wrong})
    assert (refused["status"], refused["error"]["param"]) == (400, "response_format")


@pytest.mark.parametrize("name", ["", "dial"])
async def test_a_call_that_is_required_fits_its_tool(client, name):
    functions = [{"name": other, "parameters": TWO_DIGITS} for other in ("add", "dial")]
    one = {"type": "function", "function": {"name": name}}
    body = {
        "messages": [{"role": "user", "content": "A number?"}],
        "tools": [{"type": "function", "function": function} for function in functions],
        "tool_choice": one if name else "required",
        "max_tokens": 60,
    }
    (choice,) = (await client.post("/v1/chat/completions", body))["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
    assert call["function"]["name"] in ([name] if name else ["add", "dial"])
    assert 10 <= json.loads(call["function"]["arguments"])["n"] <= 99


async def test_many_requests_at_once_give_what_they_give_alone(client):
    texts = [f"To be {n}" for n in range(12)]
    answers = await asyncio.gather(
        *(
            client.post("/v1/completions", {"prompt": text, "max_tokens": 5 + n, **GREEDY})
            for n, text in enumerate(texts)
        )
    )
    written = [answer["choices"][0]["text"] for answer in answers]
    assert written == [alone(client, text, 5 + n) for n, text in enumerate(texts)]


async def test_a_client_that_leaves_ends_its_reply(client, monkeypatch):
    ends: list[Finished] = []
    decoder = client.model.decoder
    forward = decoder.forward_rows
    monkeypatch.setattr(
        decoder,
        "forward_rows",
        lambda ids, *more, **named: ends.append(ids) or forward(ids, *more, **named),
    )
    body = {"prompt": "To be", "max_tokens": 200, "temperature": 1, "stream": True, "seed": 1}
    post = client.session.post(client.address + "/v1/completions", json=body)
    async with post as response:
        await response.content.readany()
        response.close()
    other = await client.post("/v1/completions", {"prompt": "or", "max_tokens": 3, **GREEDY})
    assert other["choices"][0]["text"] == alone(client, "or", 3)
    await asyncio.sleep(0.2)
    steps = len(ends)
    await asyncio.sleep(0.2)
    assert len(ends) == steps < 200


async def test_embeddings_and_tokens(client):
    answer = await client.post("/v1/embeddings", {"input": ["To be", "or"]})
    ids = client.model.tokenizer.encode("To be")
    expected = client.model.embed(ids)
    assert answer["data"][0]["embedding"] == pytest.approx(expected.tolist(), abs=1e-5)
    assert [item["index"] for item in answer["data"]] == [0, 1]
    assert (await client.post("/tokenize", {"prompt": "To be"}))["tokens"] == ids
    assert (await client.post("/detokenize", {"tokens": ids}))["prompt"] == "To be"
    info = await client.get("/tokenizer_info")
    name = {"prompt": info["eos_token"]}
    assert (await client.post("/tokenize", name))["tokens"] == [info["eos_token_id"]]
    as_text = await client.post("/tokenize", name | {"parse_special": False})
    assert as_text["tokens"] == client.model.tokenizer.encode(info["eos_token"])
    assert info["eos_token_id"] == client.model.tokenizer.end_id
    assert info["vocab_size"] == client.model.tokenizer.size


async def test_models_by_name(client):
    listed = await client.get("/v1/models")
    assert [model["id"] for model in listed["data"]] == ["tiny"]
    assert (await client.get("/v1/models/tiny"))["max_model_len"] == client.model.context
    assert (await client.get("/v1/models/other/one"))["status"] == 404
    assert math.isfinite(listed["data"][0]["created"])
