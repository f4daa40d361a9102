"""A model on a server: what is asked of it, what becomes of it, and all it can do wrong."""

import json
import math
import socket
import threading
import time
from contextlib import suppress

import pytest
from completions_server import (
    SAMPLING,
    SENT,
    CompletionsServer,
    break_off,
    closed_port,
    piece,
    said,
    usage,
)
from hypothesis import given
from hypothesis import strategies as st

from chatapp.dialogue.chat import Chat
from chatapp.dialogue.session import Session
from chatapp.dialogue.store import Store
from chatapp.engine.backends.remote import http
from chatapp.engine.backends.remote.http import Client, Server
from chatapp.engine.backends.remote.protocol import RemoteTokenizer
from chatapp.engine.backends.remote.remote_model import RemoteModel, connect, served_models
from chatapp.engine.errors import ModelError
from chatapp.engine.events import Finished, Token
from chatapp.engine.model import ContextOverflow, Request, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.prompting.template import ALPACA


@pytest.fixture
def server():
    with CompletionsServer().running() as server:
        yield server


@pytest.fixture
def model(server):
    server.models = [{"id": "tiny", "max_model_len": 64}]
    loaded = load_model(server.url)
    assert isinstance(loaded, RemoteModel)
    return loaded


def run(model, text="User: hi", sampling=None, **options):
    ids = model.tokenizer.encode(text)
    *tokens, finished = model.generate(Request(ids, sampling or Sampling(), **options))
    assert isinstance(finished, Finished)
    return [token for token in tokens if isinstance(token, Token)], finished


def text_of(events):
    tokens, finished = events
    return "".join(token.text for token in tokens) + finished.text


# What is asked, and what comes


def test_a_reply(server, model):
    server.stream = [*said(" It", " is", " [b]so[/b]")[:-1], usage(12, 4, cached=8), "[DONE]"]
    text = "Übung\n\nUser:  hi\x00"
    tokens, finished = run(model, text, SAMPLING, stop=["\nUser:"])
    assert [token.piece for token in tokens] == [" It", " is", " [b]so[/b]"]
    assert model.tokenizer.decode([token.id for token in tokens]) == " It is [b]so[/b]"
    assert all(math.isnan(token.logprob) for token in tokens)
    assert finished.reason == "stop"
    counts = (finished.prompt_tokens, finished.reused_tokens, finished.reply_tokens)
    assert counts == (12, 8, 4)
    assert 0 < finished.time_to_first_token <= finished.seconds
    assert server.requests == [
        {
            "model": "tiny",
            "prompt": text,
            **SENT,
            "stop": ["\nUser:"],
        }
    ]


def test_a_reply_that_repeats_itself_is_ended_and_cut_back(server, model):
    server.stream = said("It is", *[" so"] * 55)
    tokens, finished = run(model)
    assert text_of((tokens, finished)) == "It is so"
    assert (finished.reason, len(tokens)) == ("repetition", 33)
    tokens, finished = run(model, sampling=Sampling(max_repeats=0))
    assert text_of((tokens, finished)) == "It is" + " so" * 55
    assert finished.reason == "stop"


def test_counts_where_the_server_gives_none(model):
    tokens, finished = run(model, "one two")
    assert (finished.prompt_tokens, finished.reply_tokens) == (2, len(tokens)) == (2, 2)


def test_what_is_null_is_not_there(server, model):
    nothing = {"text": None, "logprobs": None, "finish_reason": None}
    event = {"error": None, "usage": None, "choices": [nothing]}
    server.stream = [json.dumps(event), json.dumps({"choices": None}), *said(" Yes.")]
    events = run(model)
    assert (text_of(events), events[1].reason, events[1].reply_tokens) == (" Yes.", "stop", 1)


def test_a_stop_string_is_cut_and_ends_the_connection(server, model):
    server.stream = [*map(piece, [" Yes.", "\nUs", "er: and"]), server.hang]
    events = run(model, stop=["1", "2", "3", "4", "\nUser:"])
    assert (text_of(events), events[1].reason) == (" Yes.", "stop")
    assert server.requests[0]["stop"] == ["1", "2", "3", "4"]
    assert server.gone.wait(120)


def test_a_server_that_does_not_stop(server, model):
    server.stream = [*[piece(" a")] * 4, server.hang]
    events = run(model, sampling=Sampling(max_tokens=3))
    assert (text_of(events), events[1].reason) == (" a a a", "length")
    assert server.gone.wait(120)


def test_the_window(server, model):
    assert model.context == 64
    with pytest.raises(ContextOverflow, match="about 64 tokens"):
        run(model, " a" * 64)
    with pytest.raises(ValueError, match="no tokens"):
        run(model, "")


LISTS = {
    "tokens": [" a", "b"],
    "token_logprobs": [-0.5, -1.5],
    "top_logprobs": [{" a": -0.5, " x": -0.25}, {"b": -1.5}],
}
OBJECTS = {
    "content": [
        {
            "token": " a",
            "logprob": -0.5,
            "top_logprobs": [{"token": " x", "logprob": -0.25}, {"token": " a", "logprob": -0.5}],
        },
        {"token": "b", "logprob": -1.5, "top_logprobs": [{"token": "b", "logprob": -1.5}]},
    ]
}


@pytest.mark.parametrize("logprobs", [LISTS, OBJECTS])
def test_log_probabilities(server, model, logprobs):
    server.stream = [piece(" ab", "stop", logprobs=logprobs), "[DONE]"]
    tokens, _ = run(model, top=2)
    assert server.requests[0]["logprobs"] == 2
    assert [(token.piece, token.logprob) for token in tokens] == [(" a", -0.5), ("b", -1.5)]
    first = [(other.text, other.logprob) for other in tokens[0].alternatives]
    assert first == [(" x", -0.25), (" a", -0.5)]
    assert tokens[0].alternatives[1].id == tokens[0].id


@pytest.mark.parametrize(
    ("logprobs", "logprob"),
    [
        ({**LISTS, "tokens": ["bytes:\\xe2", "b"]}, -2.0),
        ({"tokens": [" a"], "token_logprobs": [None], "top_logprobs": None}, math.nan),
        ({"tokens": 3}, math.nan),
        ({"content": [7]}, math.nan),
        ({"content": [{"token": " ab", "logprob": -0.5, "top_logprobs": 3}]}, -0.5),
        ({"content": [{"token": " ab", "logprob": 10**400}]}, math.nan),
        ([], math.nan),
        (None, math.nan),
    ],
)
def test_log_probabilities_that_do_not_fit(server, model, logprobs, logprob):
    server.stream = [piece(" ab", "stop", logprobs=logprobs), "[DONE]"]
    (token,), _ = run(model, top=2)
    assert token.text == " ab"
    assert token.logprob == logprob or (math.isnan(token.logprob) and math.isnan(logprob))


def test_options_beyond_the_protocol_are_spoken_of_once(server, model):
    assert run(model)[1].message == ""
    message = run(model, sampling=Sampling(top_k=5, no_repeat_ngram=3))[1].message
    assert "does not support no_repeat_ngram" in message
    assert "Not every server follows top_k" in message
    assert run(model, sampling=Sampling(top_k=6, no_repeat_ngram=2))[1].message == ""
    assert "min_p" in run(model, sampling=Sampling(min_p=0.1))[1].message


def test_a_server_that_only_takes_the_protocol(server, model):
    def strict(request):
        if "top_k" in request:
            error = {"error": {"message": "Unrecognized request argument supplied: top_k"}}
            return 400, json.dumps(error), {}
        return said(" Yes.")

    server.stream = strict
    events = run(model, sampling=Sampling(top_k=5, temperature=0.2))
    assert text_of(events) == " Yes."
    assert events[1].message == "The server does not support top_k."
    run(model)
    asked = [
        {"top_k", "min_p", "repetition_penalty"} & request.keys() for request in server.requests
    ]
    assert [len(names) for names in asked] == [3, 0, 0]
    assert server.requests[1]["temperature"] == 0.2


# Ends before the end


def test_cancelling_closes_the_connection(server, model):
    cancel = threading.Event()
    # The server itself lets the user lose patience while nothing comes.
    server.stream = [piece(" Well"), cancel.set, server.hang]
    events = run(model, cancel=cancel)
    assert events[1].reason == "cancelled"
    assert server.gone.wait(120)
    server.stream = said(" Yes.")
    assert text_of(run(model)) == " Yes."


def test_cancelling_before_the_answer_begins(server, model):
    cancel = threading.Event()

    def wait(request):
        cancel.set()
        return [server.hang]

    server.stream = wait
    assert run(model, cancel=cancel)[1].reason == "cancelled"
    assert server.gone.wait(120)


def test_a_generator_that_is_left_closes_the_connection(server, model):
    server.stream = [piece(" Well"), server.hang]
    events = model.generate(Request(model.tokenizer.encode("hi"), Sampling()))
    assert next(events).text == " Well"
    events.close()
    assert server.gone.wait(120)


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ([break_off], "broke off the connection"),
        ([], "broke off the reply"),
        ([piece(" then"), '{"error": {"message": "out of [b]memory[/b]"}}'], "of [b]memory[/b]"),
        ([piece("", "abort"), "[DONE]"], "ended the reply: abort"),
        (["oops"], "not JSON"),
        pytest.param(["[" * 100_000], "not JSON", id="deep"),
        (["[]"], "not a JSON object"),
        (['{"choices": [{"text": 3}]}'], "has no text"),
        (['{"choices": [3]}'], "has no text"),
        pytest.param([b"data: " + b"x" * 2_000_000], "not an event stream", id="endless"),
    ],
)
def test_a_reply_that_breaks_off_is_kept(server, model, rest, words):
    server.stream = [piece(" Well,"), piece("\nUs"), *rest]
    events = run(model, stop=["\nUser:"])
    assert text_of(events).startswith(" Well,\nUs")
    assert events[1].reason == "error"
    assert words in events[1].message
    assert "\n" not in events[1].message


@pytest.mark.parametrize("rest", [[], [break_off], ["oops"], ["[DONE]", "oops"]])
def test_what_goes_wrong_after_the_end_is_no_matter(server, model, rest):
    server.stream = [piece(" Yes."), piece("", "stop"), *rest]
    tokens, finished = run(model)
    assert (tokens[0].text, finished.reason, finished.message) == (" Yes.", "stop", "")


def test_a_server_that_falls_silent(server, model, monkeypatch):
    monkeypatch.setattr(http, "SILENCE_SECONDS", 0.05)
    server.stream = [server.hang]
    finished = run(model)[1]
    assert (finished.reason, finished.message) == (
        "error",
        f"{server.url}: the server has stopped answering",
    )


def keep_sending(data):
    """A stream of the same again and again, until the client has hung up."""
    return [part for _ in range(2_000) for part in (data, lambda: time.sleep(0.03))]


@pytest.mark.parametrize(
    "data",
    [
        *(b": waiting\n\n", b"data:\n\n", b"\n", b"   \n\n", b'data: {"choices": []}\n\n'),
        f"data: {piece(' ')}\n\n".encode(),
    ],
    ids=["comments", "empty events", "lines", "spaces", "no choices", "spaces as words"],
)
def test_a_server_that_sends_no_words_is_given_up(data, server, model, monkeypatch):
    monkeypatch.setattr(http, "SILENCE_SECONDS", 0.3)
    server.stream = [piece(" Yes"), *keep_sending(data)]
    tokens, finished = run(model)
    assert "".join(token.text for token in tokens).rstrip() == " Yes"
    assert finished.message == f"{server.url}: the server has stopped answering"


def test_what_a_server_sends_is_not_read_before_it_is_wanted(server):
    """What waits to be read has a bound, however fast events come."""
    event = f"data: {json.dumps({'choices': [], 'filler': 'x' * 10_000})}\n\n".encode()
    sent = []
    server.stream = [part for _ in range(5_000) for part in (event, lambda: sent.append(1))]
    client = http.Client(Server(server.url))
    events = client.events("completions", {"prompt": "a"}, json.loads, threading.Event())
    for _ in range(10):
        next(events)
    time.sleep(0.5)
    assert 10 <= len(sent) < 4_000  # the rest waits in the server
    events.close()


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_list_that_comes_byte_by_byte_is_given_up(start, monkeypatch):
    monkeypatch.setattr(http, "_ANSWER_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip():
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(start)
                for _ in range(2_000):
                    connection.sendall(b"[" if start.endswith(b"\r\n\r\n") else b"H")
                    time.sleep(0.005)

        threading.Thread(target=drip, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        with pytest.raises(ModelError, match="the server has stopped answering"):
            served_models(Client(Server(url)))


REFUSALS = [
    (401, "no", {}, "the server requires a key"),
    (403, "no", {}, "the server requires a key"),
    (404, "<html>", {}, "the server has no such address"),
    (
        307,
        "",
        {"Location": "http://elsewhere.example/v1"},
        "redirects to http://elsewhere.example/v1",
    ),
    (500, '{"error": {"message": "out of\\nmemory"}}', {}, "returned HTTP 500: out of memory"),
    (503, '{"detail": [{"x": 1}]}', {}, "returned HTTP 503: [{'x': 1}]"),
    (429, '{"message": "too many"}', {}, "returned HTTP 429: too many"),
    (502, "<html>", {}, "returned HTTP 502 without a message"),
    pytest.param(400, "[" * 100_000, {}, "returned HTTP 400 without a message", id="deep"),
]


@pytest.mark.parametrize(("status", "body", "headers", "words"), REFUSALS)
def test_refusals(server, model, status, body, headers, words):
    server.instead = dict.fromkeys(("/v1/models", "/v1/completions"), (status, body, headers))
    finished = run(model)[1]
    assert finished.reason == "error"
    with pytest.raises(ModelError) as error:
        load_model(server.url)
    for message in (finished.message, str(error.value)):
        assert words in message
        assert message.startswith(server.url)
        assert "\n" not in message


def test_a_completion_that_is_no_stream(server, model):
    server.instead = {"/v1/completions": (200, '{"choices": []}', {})}
    finished = run(model)[1]
    assert (finished.reason, finished.message.count("not an event stream")) == ("error", 1)


@pytest.mark.parametrize(
    "body",
    [
        "<html>",
        "3",
        '{"data": {}}',
        '["x"]',
        pytest.param("[" * 100_000, id="deep"),
        pytest.param("x" * 2**21, id="endless"),
    ],
)
def test_a_list_of_models_that_is_none(server, body):
    server.instead = {"/v1/models": (200, body, {})}
    with pytest.raises(ModelError, match="this is not a model server"):
        load_model(server.url)


def test_nobody_listens(server, model):
    url = f"http://127.0.0.1:{closed_port()}/v1"
    with pytest.raises(ModelError, match=f"{url}: the server cannot be reached"):
        load_model(url)
    gone = RemoteModel(Client(Server(url)), name="gone", context=64)
    finished = run(gone)[1]
    assert finished.reason == "error"
    assert "cannot be reached" in finished.message


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("http://a..b/v1", {}),
        (f"http://{'a' * 64}.example/v1", {}),
        ("http://away.invalid/v1", {"ALL_PROXY": "odd://localhost"}),
        ("http://away.invalid/v1", {"ALL_PROXY": "socks5://localhost"}),
        ("https://away.invalid/v1", {"SSL_CERT_FILE": "absent.pem"}),
        ("https://away.invalid/v1", {"SSL_CERT_FILE": __file__}),
    ],
)
def test_there_is_no_way_to_it(url, settings, monkeypatch):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ModelError, match=f"{url}: the server cannot be reached: "):
        served_models(Client(Server(url)))


# Which model


def test_the_context(server, tmp_path):
    def loaded():
        model = load_model(server.url)
        assert isinstance(model, RemoteModel)
        return model

    assert loaded().context == 2048
    assert "2,048 tokens are assumed" in loaded().remark
    server.props = {"default_generation_settings": {"n_ctx": 512}}
    assert (loaded().context, loaded().remark) == (512, "")
    server.models = [{"id": "tiny", "max_model_len": 300}]
    assert loaded().context == 300
    (tmp_path / "config").mkdir()
    (tmp_path / "config/servers.toml").write_text(f'[mine]\nurl = "{server.url}"\ncontext = 100\n')
    assert (loaded().context, loaded().name) == (100, f"{server.url}#tiny")
    assert load_model("mine").name == "mine#tiny"
    assert load_model("mine#tiny").context == 100


def test_the_key(server, tmp_path, monkeypatch):
    (tmp_path / "config").mkdir()
    (tmp_path / "config/servers.toml").write_text(f'[mine]\nurl = "{server.url}"\nkey = "MY_KEY"\n')
    with pytest.raises(ModelError, match="MY_KEY, which holds its key, is not set"):
        load_model("mine")
    assert server.keys == []
    monkeypatch.setenv("MY_KEY", "sesame")
    model = load_model("mine")
    assert isinstance(model, RemoteModel)
    assert "unencrypted" not in model.remark
    run(model)
    assert set(server.keys) == {"Bearer sesame"}
    server.instead = {"/v1/completions": (401, '{"error": "sesame is wrong"}', {})}
    message = run(model)[1].message
    assert message == f"{server.url}: the server rejected the key in MY_KEY"
    server.instead = {"/v1/completions": (400, '{"error": "no user for Bearer sesame"}', {})}
    assert run(model)[1].message.endswith("returned HTTP 400: no user for Bearer MY_KEY")
    server.instead = {}
    server.stream = ['{"error": {"message": "sesame has no more tokens"}}']
    assert run(model)[1].message == "the server failed: MY_KEY has no more tokens"
    monkeypatch.delenv("MY_KEY")
    assert "MY_KEY, which holds its key, is not set" in run(model)[1].message


def test_a_key_is_for_one_address_alone(server, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sesame")
    with CompletionsServer().running() as other:
        headers = {"Location": f"{other.url}/models"}
        server.instead = {"/v1/models": (302, "", headers)}
        with pytest.raises(ModelError, match="redirects to"):
            connect(Server(server.url, key="MY_KEY"), name="mine")
        assert (len(server.keys), other.keys) == (1, [])


def test_a_key_in_clear_over_a_network_is_spoken_of(server, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sesame")
    monkeypatch.setattr(Server, "is_here", property(lambda server: False))
    remark = connect(Server(server.url, key="MY_KEY", context=64), name="mine").remark
    assert remark == "The key is sent to 127.0.0.1 unencrypted; use https."
    assert connect(Server(server.url, context=64), name="mine").remark == ""


def test_what_needs_the_model_itself(model):
    with pytest.raises(ModelError, match="scoring needs a server that repeats the prompt"):
        model.score([(model.tokenizer.encode("A"), model.tokenizer.encode(" cat"))])
    with pytest.raises(ModelError, match="hidden states"):
        model.embed([1])
    assert model.files is None


# Text in pieces


@given(st.text(st.characters(codec=None)))
def test_pieces_are_the_text(text):
    pieces = RemoteTokenizer()
    ids = pieces.encode(text)
    stream = pieces.stream()
    assert pieces.decode(ids) == "".join(map(stream.push, ids)) + stream.flush() == text
    assert pieces.end_id not in ids
    assert pieces.decode([pieces.end_id]) == ""


# A chat


def test_the_end_of_a_reply_is_not_spelled_out(server, model, tmp_path):
    store = Store(tmp_path / "chats.db")
    model.context = 512
    session = Session(Chat(store), model, template=ALPACA)
    list(session.say("One"))
    list(session.say("Two"))
    assert "<|" not in server.requests[1]["prompt"]
    assert "Hello.\n\n### Instruction:\nTwo" in server.requests[1]["prompt"]
    store.close()
