"""A server of chats: which protocol is spoken with it, what is asked, and all it can do wrong."""

import json
import math
import random

import pytest
from completions_server import LOGPROBS, SAMPLING, SENT, break_off, delta, replied, usage

from chatapp.engine.errors import ModelError
from chatapp.engine.events import Finished, Token
from chatapp.engine.model import Request, Sampling
from chatapp.engine.models.loading import load_model

HELLO = [{"role": "user", "content": "hi"}]


def named(server, tmp_path, protocol):
    """The name of the server, of which the protocol is said."""
    (tmp_path / "config").mkdir()
    table = f'[mine]\nurl = "{server.url}"\nprotocol = "{protocol}"\n'
    (tmp_path / "config/servers.toml").write_text(table)
    return "mine"


def replied_to(messages, sampling=None, **options):
    """A request of a reply to messages."""
    return Request((), sampling or Sampling(), messages=messages, **options)


def run(model, sampling=None, **options):
    *tokens, finished = model.generate(replied_to(HELLO, sampling, **options))
    assert isinstance(finished, Finished)
    return [token for token in tokens if isinstance(token, Token)], finished


def text_of(events):
    tokens, finished = events
    return "".join(token.text for token in tokens) + finished.text


# Which protocol


@pytest.mark.parametrize(
    ("protocols", "converses", "asked"),
    [
        (("chat/completions", "completions"), True, 1),
        (("chat/completions",), True, 1),
        (("completions",), False, 2),
    ],
)
def test_the_protocol_is_found_out(server, protocols, converses, asked):
    server.protocols = protocols
    assert load_model(server.url).takes_messages is converses
    assert len(server.probes) == asked
    assert server.requests == []


def test_a_server_that_has_neither(server):
    server.protocols = ()
    with pytest.raises(ModelError) as error:
        load_model(server.url)
    assert str(error.value) == (
        f"{server.url}: the server offers neither chat nor completions of OpenAI's API"
    )


@pytest.mark.parametrize("protocol", ["chat", "completions"])
def test_a_protocol_that_is_said_is_not_asked_for(server, tmp_path, protocol):
    model = load_model(named(server, tmp_path, protocol))
    assert model.takes_messages is (protocol == "chat")
    assert server.probes == []


def test_a_protocol_that_there_is_not(server, tmp_path):
    with pytest.raises(ModelError) as error:
        load_model(named(server, tmp_path, "chatt"))
    expected = "server 'mine': 'protocol' is the string 'chatt', expected 'auto', 'chat' or"
    assert expected in str(error.value)


# What is asked, and what comes


def test_a_reply(server, model):
    server.stream = [*replied("It", " is", " [b]so[/b]")[:-1], usage(12, 4, cached=8), "[DONE]"]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a\ud800"}]
    *tokens, finished = model.generate(replied_to(messages, SAMPLING))
    assert [token.piece for token in tokens if isinstance(token, Token)] == [
        "It",
        " is",
        " [b]so[/b]",
    ]
    assert all(math.isnan(token.logprob) for token in tokens if isinstance(token, Token))
    counts = (finished.prompt_tokens, finished.reused_tokens, finished.reply_tokens)
    assert (finished.reason, counts) == ("stop", (12, 8, 4))
    assert 0 < finished.time_to_first_token <= finished.seconds
    assert server.requests == [
        {
            "model": "tiny",
            "messages": [messages[0], {"role": "user", "content": "a\ufffd"}],
            **SENT,
        }
    ]


def test_log_probabilities(server, model):
    server.stream = [delta(content="Yes", logprobs=LOGPROBS), *replied("!")]
    (first, second), _ = run(model, top=2)
    assert (server.requests[0]["logprobs"], server.requests[0]["top_logprobs"]) == (True, 2)
    assert first.logprob == -0.5
    assert [(other.text, other.logprob) for other in first.alternatives] == [
        ("No", -0.25),
        ("Yes", -0.5),
    ]
    assert first.alternatives[1].id == first.id
    assert math.isnan(second.logprob)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_what_was_thought_stands_between_marks(server, model, name):
    thoughts = [delta(**{name: "They", "content": None}), delta(**{name: " ask.", "content": ""})]
    server.stream = [*thoughts, *replied("Yes", ".")]
    tokens, finished = run(model)
    assert "".join(token.text for token in tokens) == "<think>\nThey ask.\n</think>\n\nYes."
    assert (finished.reason, finished.reply_tokens) == ("stop", 4)


def test_a_thought_and_a_reply_in_one_event(server, model):
    server.stream = [delta(reasoning="Hm.", content="Yes", logprobs=LOGPROBS), *replied()]
    tokens, _ = run(model, top=2)
    assert [token.text for token in tokens] == ["<think>\nHm.", "\n</think>\n\nYes"]
    assert all(math.isnan(token.logprob) for token in tokens)


def test_a_thought_that_takes_all_there_is(server, model):
    server.stream = [delta(reasoning="Hm"), delta("length", reasoning=" hm"), "[DONE]"]
    events = run(model, Sampling(max_tokens=2))
    assert (text_of(events), events[1].reason) == ("<think>\nHm hm", "length")


@pytest.mark.parametrize("seed", range(5))
def test_data_that_is_split_anywhere(server, model, seed):
    events = [delta(content="Größe 日本 🙂\u2028!"), delta("stop"), usage(5, 6), "[DONE]"]
    parts = [b": keep-alive\r\n\r\n", b"retry: 3000\n\n"]
    parts += [f"id: 7\ndata: {event}\r\n\r\n".encode() for event in events]
    data, split = b"".join(parts), random.Random(seed)
    places = sorted(split.sample(range(1, len(data)), 40))
    server.stream = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    result = run(model)
    assert (text_of(result), result[1].reason) == ("Größe 日本 🙂\u2028!", "stop")
    assert (result[1].prompt_tokens, result[1].reply_tokens) == (5, 6)


# Ends before the end


def test_a_message_that_may_have_been_accepted_is_not_sent_again(server, model):
    server.stream = [break_off]
    assert run(model)[1].reason == "error"
    assert len(server.requests) == 1


# Servers that take less


def refusing(name, status, words):
    """A stream that refuses a request with this field."""

    def answer(request):
        if name in request:
            return status, json.dumps({"error": {"message": words}}), {}
        return replied("Yes.")

    return answer


@pytest.mark.parametrize(
    ("name", "status", "words", "message"),
    [
        ("logprobs", 500, "logprobs is not supported with logits_all=False", ""),
        ("top_logprobs", 400, "Unsupported parameter: 'top_logprobs'", ""),
        ("stream_options", 422, '[{"loc": ["body", "stream_options"]}]', ""),
        ("seed", 400, "Unknown parameter: seed", "The server does not support seed."),
        ("min_p", 400, "property 'min_p' is unsupported", ""),
    ],
)
def test_what_a_server_refuses_is_left_out(server, model, name, status, words, message):
    server.stream = refusing(name, status, words)
    for expected in (message, ""):  # said once
        events = run(model, Sampling(seed=1), top=3)
        assert (text_of(events), events[1].message) == ("Yes.", expected)
    assert [name in request for request in server.requests] == [True, False, False]
    left_out = server.requests[0].keys() - server.requests[1].keys()
    assert not left_out & {"model", "messages", "max_tokens", "temperature", "top_p", "stream"}


def test_several_refusals_one_after_the_other(server, model):
    refusals = [refusing(name, 400, f"no {name}") for name in ("seed", "logprobs", "top_k")]

    def strict(request):
        answers = [refusal(request) for refusal in refusals]
        return next((answer for answer in answers if isinstance(answer, tuple)), answers[0])

    server.stream = strict
    events = run(model, Sampling(seed=1, top_k=5), top=3)
    assert text_of(events) == "Yes."
    assert events[1].message == "The server does not support top_k and seed."
    assert len(server.requests) == 4


@pytest.mark.parametrize("words", ["temperature is too high", "bad seedling"])
def test_a_refusal_of_what_is_needed_is_told(server, model, words):
    server.stream = refusing("temperature", 400, words)
    finished = run(model, Sampling(seed=1))[1]
    assert finished.message == f"{server.url}: the server returned HTTP 400: {words}"
    assert len(server.requests) == 1


# Text that goes on as it stands


def test_text_where_there_are_chats_alone(server, model):
    server.protocols = ("chat/completions",)
    for _ in range(2):
        (finished,) = model.generate(Request(model.tokenizer.encode("Once"), Sampling()))
        assert finished.reason == "error"
        assert finished.message == (
            f"{server.url}: this server offers chats only; continuing a text needs a server "
            "with OpenAI's completions API"
        )
    # The second time it is known.
    assert server.refused.count("/v1/completions") == 1


def test_text_where_chats_are_asked_for(server, tmp_path):
    model = load_model(named(server, tmp_path, "chat"))
    (finished,) = model.generate(Request(model.tokenizer.encode("Once"), Sampling()))
    assert isinstance(finished, Finished)
    assert "offers chats only" in finished.message
    assert server.requests == []
