"""A server that runs is used instead of loading its model, where that is the same model."""

import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import asdict, replace

import httpx2
import pytest
from api_server import on_a_thread
from completions_server import closed_port
from thinking_model import thinking_model

from chatapp.commands.answers import ServedQuestion, tokens_in
from chatapp.common.parameters import PARAMETERS, Choices
from chatapp.common.paths import background_path
from chatapp.dialogue.writers.choosing import choose_template
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.backends.remote.http import Client as ServerClient
from chatapp.engine.backends.remote.http import RefusedError
from chatapp.engine.constraint.constraint import Constraint
from chatapp.engine.decoder.interventions import Part, switched_off
from chatapp.engine.events import Finished, Token
from chatapp.engine.model import ContextOverflow, Request, Sampling
from chatapp.engine.models import running
from chatapp.engine.models.loading import load_model
from chatapp.engine.models.running import OwnServer, Running, RunningModel, reply_events
from chatapp.lab.inspectable import inspectable
from chatapp.server.bodies import CompletionBody
from chatapp.server.prompts import sampling_of
from chatapp.server.server import Access

CHAT = {"messages": [{"role": "user", "content": "To be"}]}
SAMPLING = Sampling(temperature=0.9, top_p=0.95, seed=3, max_tokens=9)


@pytest.fixture(scope="module")
def local(tiny_folder):
    return load_model(str(tiny_folder))


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """What a server of this user holds."""
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))
    return running.claim()


@pytest.fixture
def noted(address, local, lock, tmp_path):
    """The server at `address` as this user's; its name for the model is "tiny"."""
    served = running.describe(str(local.files.path), local, ("auto", "cpu"), {})
    served = replace(served, name="tiny", template="plain")
    server = Running(os.getpid(), OwnServer(f"{address}/v1"), (served,))
    running.note(server)
    return server


@pytest.fixture
def model(noted, tiny_folder):
    model = running.load_served(str(tiny_folder), "float32", "cpu")
    assert isinstance(model, RunningModel)
    return model


def test_its_replies_are_the_models(model, local):
    ids = model.tokenizer.encode("To be")
    requests = [Request(ids, replace(SAMPLING, seed=n), top=2) for n in range(3)]
    for request in requests:
        *tokens, end = model.generate(request)
        *expected, expected_end = local.generate(request)
        assert len(tokens) == len(expected) > 1
        for token, other in zip(tokens, expected, strict=True):
            assert (token.id, token.text, token.piece) == (other.id, other.text, other.piece)
            assert token.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert len(token.alternatives) == 2
        assert isinstance(end, Finished)
        assert isinstance(expected_end, Finished)
        assert end.text == expected_end.text
        assert (end.reason, end.reply_tokens) == (expected_end.reason, expected_end.reply_tokens)
        assert (end.prompt_tokens, end.end_id) == (expected_end.prompt_tokens, expected_end.end_id)
    ends = [event for _, event in model.generate_many(requests) if isinstance(event, Finished)]
    assert [end.reason for end in ends] == ["length"] * 3


def test_its_scores_are_the_models(model, local):
    ids = local.tokenizer.encode("To be or not to be")
    pairs = [(ids[:n], ids[n:]) for n in range(1, 5)]
    for own, expected in zip(model.score(pairs), local.score(pairs), strict=True):
        assert own == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ContextOverflow):
        model.score([(ids * 99, ids)])
    with pytest.raises(ContextOverflow):
        model.generate(Request(ids * 99, SAMPLING))


def test_the_microscope_and_changes_load_the_model(model, local):
    ids = local.tokenizer.encode("To be")
    changed = replace(Request(ids, SAMPLING), interventions=switched_off([Part(0, is_mlp=True)]))
    texts = ["".join(event.text for event in one.generate(changed)) for one in (model, local)]
    assert texts[0] == texts[1]
    view, expected = inspectable(model), inspectable(local)
    assert type(view.inspect(ids)) is type(expected.inspect(ids))
    assert isinstance(model, RunningModel)
    assert isinstance(model.here, LocalModel)


def test_another_model_is_not_used(noted, tiny_folder, tmp_path):
    name = str(tiny_folder)
    assert running.find(name, "auto", "cpu") is not None
    assert running.find(os.path.relpath(name), "float32", "cpu") is not None
    assert running.find(name, "int8", "cpu") is None
    assert running.find(name, "auto", "auto") is None
    assert running.find("bundled", "auto", "cpu") is None
    assert running.find(str(tmp_path), "auto", "cpu") is None
    (served,) = noted.models
    files = dict(served.files)
    path, (size, time) = next(iter(files.items()))
    files[path] = (size, time - 1)  # trained again since
    running.note(replace(noted, models=(replace(served, files=files),)))
    assert running.find(name, "auto", "cpu") is None


def test_only_the_server_of_this_user_is_used(noted, lock):
    assert running.running() == noted
    lock.release()  # it was killed; another program may have its port
    assert running.running() is None
    lock.acquire()
    assert os.name == "nt" or background_path().stat().st_mode & 0o777 == 0o600
    wrong = ("", "[]", "{}", '{"pid": 1, "server": 2, "models": 3}', "[" * 100_000, "\udcff")
    for nonsense in wrong:
        background_path().write_text(nonsense, errors="surrogateescape")
        assert running.running() is None
        running.forget(os.getpid())
    if hasattr(os, "mkfifo"):
        background_path().unlink()
        os.mkfifo(background_path())
        assert running.running() is None


def test_the_key_is_in_the_private_file_alone(local, noted, tiny_folder):
    ids = local.tokenizer.encode("To be")
    with on_a_thread(local, access=Access(frozenset({"127.0.0.1"}), "the key")) as address:
        dead = f"http://127.0.0.1:{closed_port()}"
        for at, key, reason, words in (
            (address, "the key", "length", ""),
            (address, "another", "error", "key is missing or wrong"),
            (dead, "the key", "error", "cannot be reached"),
        ):
            server = OwnServer(f"{at}/v1", own_key=key)
            running.note(replace(noted, server=server))
            model = running.load_served(str(tiny_folder), "auto", "cpu")
            *_, end = model.generate(Request(ids, SAMPLING))
            assert (end.reason, words in end.message) == (reason, True)
            assert "the key" not in repr(server) + end.message


def test_a_cancelled_reply_ends(model):
    cancel = threading.Event()
    ids = model.tokenizer.encode("To be")
    long = replace(SAMPLING, max_tokens=200, max_repeats=0)
    events = model.generate(Request(ids, long, cancel=cancel))
    assert isinstance(next(events), Token)
    cancel.set()
    *_, end = events
    assert end.reason == "cancelled"


@pytest.mark.parametrize(
    "limits",
    [
        Constraint.of_schema(
            {"type": "object", "properties": {"a": {"type": "boolean"}}}, spaced=True
        ),
        Constraint.of_pattern("[a-d]{3,40}"),
        Constraint.of_grammar('start: "yes" | "no"'),
    ],
    ids=["schema", "pattern", "grammar"],
)
def test_a_constraint_is_followed_there(model, local, limits):
    request = Request(local.tokenizer.encode("To be"), SAMPLING, top=1, constraint=limits)
    *tokens, end = model.generate(request)
    *expected, expected_end = local.generate(request)
    for token, other in zip(tokens, expected, strict=True):
        assert (token.id, token.text, token.forced) == (other.id, other.text, other.forced)
        assert token.forbidden == pytest.approx(other.forbidden, abs=1e-5)
    assert end.fit == pytest.approx(expected_end.fit, abs=1e-5)
    assert (end.reason, end.message) == (expected_end.reason, expected_end.message)
    assert "here" not in vars(model)
    partial = replace(request, constraint=replace(limits, after="</think>"))
    list(model.generate(partial))  # the protocol has no words for it
    assert "here" in vars(model)


async def test_a_form_that_is_none_is_refused(client):
    for form in ({}, {"regex": "a", "grammar": "b"}, {"regex": "("}, {"json": "["}):
        for path, body in (("completions", {"prompt": "a"}), ("chat/completions", CHAT)):
            answer = await client.post(f"/v1/{path}", body | {"structured_outputs": form})
            assert answer["status"] == 400
            assert answer["error"]["param"] == "structured_outputs"
    form = {"regex": "[a-d]{4}"}
    answer = await client.post("/v1/chat/completions", CHAT | {"structured_outputs": form})
    assert re.fullmatch("[a-d]{4}", answer["choices"][0]["message"]["content"])


def test_the_model_goes_on_after_forced_tokens_here(model, local):
    ids = local.tokenizer.encode("To be or not")
    for forced in (ids[2:], [*ids[2:], local.tokenizer.end_id]):
        request = Request(ids[:2], SAMPLING, forced=forced)
        events, expected = (list(one.generate(request)) for one in (model, local))
        assert [event.text for event in events] == [event.text for event in expected]
        assert isinstance(model, RunningModel)
        assert ("here" in vars(model)) == (forced == ids[2:])
        vars(model).pop("here", None)


def events_of_ask(address, question, sampling):
    """What `ask` gets from a server."""
    client = ServerClient(OwnServer(f"{address}/v1", model="tiny"))
    return list(reply_events(client, "chat/completions", question.body, sampling, None, tokens_in))


def test_ask_gets_thoughts_and_the_switch_for_them(tmp_path):
    model = thinking_model(tmp_path, ["<think>\nThey greet me.\n</think>\n\nHello you!", "Yes."])
    sampling = Sampling(max_tokens=99)
    with on_a_thread(model, template=choose_template(model, "")) as address:
        events = events_of_ask(address, ServedQuestion("Hi", None, "", None), sampling)
        events_of_ask(address, ServedQuestion("Hi", "Be brief.", "", False), sampling)
        body = {"messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": "none"}
        answer = httpx2.post(f"{address}/v1/chat/completions", json=body)
    assert "X-Ignored-Keys" not in answer.headers
    assert all(prompt.endswith("<think>\n\n</think>\n\n") for prompt in model.prompts[1:])
    assert "".join(event.text for event in events) == "Hello you!"
    assert "".join(event.thought or "" for event in events) == "\nThey greet me.\n"
    assert sum(event.thought is not None for event in events) == 7  # its tokens
    assert "Be brief." in model.prompts[1]


def test_ask_hears_why_a_reply_ended(local):
    """The protocol knows two reasons; this program has more."""
    long = Sampling(temperature=0, max_tokens=900, max_repeats=0)
    question = ServedQuestion("To be", None, "", None)
    with on_a_thread(local) as address:
        *_, end = events_of_ask(address, question, long)
        assert end.reason == "context"
        with pytest.raises(RefusedError, match="3000 tokens long"):
            events_of_ask(address, replace(question, question="To be " * 500), long)
        with pytest.raises(RefusedError, match="switch for thinking"):
            events_of_ask(address, replace(question, think=True), long)


def test_every_parameter_reaches_the_server():
    values = (0.0, 2, 0.5, 0.1, 1.5, 3, 0.5, -0.5, 4, 5, 6)
    sampling = Sampling.of(dict(zip(PARAMETERS, values, strict=True)))
    body = CompletionBody(**asdict(sampling))
    assert sampling_of(body, Choices(), sampling.max_tokens) == sampling


COMMANDS = "answers ask console loading options".split()
SLOW = "torch transformers datasets tokenizers numpy jinja2 jsonschema llguidance".split()
SLOW += "textual rich aiohttp sqlite3 huggingface_hub".split()
SLOW += ["chatapp.engine.backends.remote.remote_model"]


def test_ask_imports_little(noted, tiny_folder, tmp_path):
    """Imports took most of the time of an answer."""
    code = (
        "import sys; from chatapp.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "print(*sys.modules, file=sys.stderr)"
    )
    options = ["--model", str(tiny_folder), "--max-tokens", "4", "--seed", "1", "--json"]
    environment = os.environ | {"CHATAPP_DEVICE": "cpu"}

    def run(*command):
        result = subprocess.run(
            [sys.executable, *command, "ask", "Who is it?", *options],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(result.stdout), result.stderr

    served, imported = run("-c", code)
    modules = imported.split()
    assert not {*SLOW} & {*modules}
    rooms = {name.split(".")[1] for name in modules if name.startswith("chatapp.")}
    assert rooms <= {"cli", "commands", "common", "dialogue", "engine"}
    commands = {name.split(".")[2] for name in modules if name.startswith("chatapp.commands.")}
    assert commands == {*COMMANDS}
    assert not {name for name in modules if name.startswith("chatapp.engine.decoder.families")}
    options.append("--no-server")
    alone, _ = run("-m", "chatapp")
    assert [served[name] for name in ("reply", "template", "prompt_tokens")] == [
        alone[name] for name in ("reply", "template", "prompt_tokens")
    ]
