"""Chats with a server that writes them in its model's own template."""

import json
from dataclasses import replace

import pytest
from completions_server import LOGPROBS, CompletionsServer, delta, piece, replied, said

from chatapp.dialogue.chat import Chat
from chatapp.dialogue.reading import read
from chatapp.dialogue.session import Session
from chatapp.dialogue.writers.choosing import SERVED, choose_template
from chatapp.engine.events import Finished
from chatapp.engine.models.loading import load_model
from chatapp.prompting.template import ALPACA, PLAIN


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path))


@pytest.fixture
def server():
    with CompletionsServer().running() as server:
        server.protocols = ("chat/completions", "completions")
        server.models = [{"id": "tiny", "max_model_len": 512}]
        server.stream = replied("Yes", ".")
        yield server


@pytest.fixture
def model(server):
    return load_model(server.url)


@pytest.fixture
def session(model, store):
    return Session(Chat(store), model)


def message(role, content):
    return {"role": role, "content": content}


def test_a_chat_is_sent_as_messages(server, session, store):
    session.chat.use_basis(replace(session.chat.basis, system=" Be brief. "))
    list(session.say("Is it\n\nUser:\nso?"))
    list(session.say("Really?"))
    sent = [
        message("system", "Be brief."),
        message("user", "Is it\n\nUser:\nso?"),
        message("assistant", "Yes."),
        message("user", "Really?"),
    ]
    assert [request["messages"] for request in server.requests] == [sent[:2], sent]
    assert not any("stop" in request for request in server.requests)
    assert [each.text for each in session.chat.messages[1::2]] == ["Yes.", "Yes."]
    rows = store.generations(session.chat.id or 0)
    assert [json.loads(row.prompt) for row in rows] == [sent[:2], sent]
    assert [row.template for row in rows] == [SERVED.name] * 2
    reading = read(session, session.chat.messages[-1].id)
    assert reading.prompt.messages_sent == sent
    assert not reading.outdated
    session.chat.use_basis(replace(session.chat.basis, system="Be long."))
    assert read(session, session.chat.messages[-1].id).outdated


def test_which_template(model):
    assert choose_template(model, "") == choose_template(model, SERVED.name) == SERVED
    assert choose_template(model, "", "alpaca") == SERVED  # a persona's, for models without one
    assert choose_template(model, "plain") == PLAIN


def test_a_template_that_was_asked_for_is_sent_as_text(server, model, store):
    server.stream = said("Yes.")
    list(Session(Chat(store), model, template=choose_template(model, "alpaca")).say("So?"))
    assert server.requests[0]["prompt"].startswith(ALPACA.instruction)


def test_what_was_thought_is_kept_but_not_sent(server, session):
    server.stream = [delta(reasoning_content="Hm."), *replied("Yes.")]
    list(session.say("So?"))
    reply = session.chat.messages[-1]
    assert (reply.text, reply.thoughts, reply.thought_tokens) == ("Yes.", "\nHm.\n", 2)
    list(session.say("Really?"))
    assert server.requests[-1]["messages"][1] == message("assistant", "Yes.")


def test_a_thought_that_was_cut_off_is_thought_anew(server, session):
    server.stream = [delta(reasoning_content="Hm, what")]
    list(session.say("So?"))
    cut = session.chat.messages[-1]
    assert (cut.text, cut.thoughts, cut.status) == ("", "\nHm, what", "error")
    server.stream = [delta(reasoning_content="Oh."), *replied("Yes.")]
    list(session.continue_reply(cut.id))
    reply = session.chat.messages[-1]
    assert (reply.text, reply.thoughts.strip(), reply.status) == ("Yes.", "Oh.", "complete")
    assert [each["role"] for each in server.requests[-1]["messages"]] == ["user"]


def test_a_reply_goes_on_as_text(server, session):
    server.stream = replied("One", " two", reason="length")
    list(session.say("Count."))
    server.stream = said(" three.")
    list(session.continue_reply(session.chat.messages[-1].id))
    assert server.requests[-1]["prompt"] == "User:\nCount.\n\nAssistant:\nOne two"
    assert session.chat.messages[-1].text == "One two three."


def test_a_branch_goes_on_as_text(server, session, store):
    server.stream = [delta(content="Yes", logprobs=LOGPROBS), *replied(".")]
    list(session.say("So?"))
    reply = session.chat.messages[-1]
    reading = read(session, reply.id)
    assert [token.logprob for token in reading.drawn[:1]] == [-0.5]
    other = reading.drawn[0].alternatives[0]
    assert other.text == "No"
    server.stream = said(", it is not.")
    list(session.branch(reply.id, [other.id]))
    assert server.requests[-1]["prompt"] == "User:\nSo?\n\nAssistant:\nNo"
    assert session.chat.messages[-1].text == "No, it is not."
    prompt = store.generations(session.chat.id or 0)[-1].prompt
    assert prompt == "User:\nSo?\n\nAssistant:\n"


def test_a_reply_that_cannot_go_on_is_kept(server, session):
    server.protocols = ("chat/completions",)
    list(session.say("So?"))
    *_, finished = session.continue_reply(session.chat.messages[-1].id)
    assert isinstance(finished, Finished)
    assert "offers chats only" in finished.message
    assert session.chat.messages[-1].text == "Yes."


def test_a_chat_goes_on_in_another_model(server, session, store):
    list(session.say("So?"))
    server.protocols = ("completions",)
    other = load_model(server.url)
    server.stream = [piece(" No."), piece("", "stop")]
    template = choose_template(other, "")
    list(Session(Chat(store, session.chat.id), other, template=template).say("Really?"))
    assert server.requests[-1]["prompt"].endswith(
        "User: So?\nAssistant: Yes.\nUser: Really?\nAssistant:"
    )


def calls_of(*arguments, name="calculator"):
    """The events of a reply that calls a tool, its arguments in these pieces."""
    opening = {"index": 0, "id": "x", "type": "function", "function": {"name": name}}
    parts = [{"index": 0, "function": {"arguments": part}} for part in arguments]
    deltas = [delta(tool_calls=[each]) for each in (opening, *parts)]
    return [delta(role="assistant"), *deltas, delta("tool_calls"), "[DONE]"]


@pytest.mark.parametrize("cut", [1, 5, 100])
def test_a_server_calls_tools(server, session, store, cut):
    text = '{"expression": "48*76"}'
    pieces = [text[start : start + cut] for start in range(0, len(text), cut)]

    def answer(request):
        messages = request["messages"]
        assert isinstance(messages, list)
        return replied("3648.") if messages[-1]["role"] == "tool" else [*calls_of(*pieces)]

    server.stream = answer
    session.set_tools(["calculator"])
    list(session.say("How many?"))
    reply = session.chat.messages[-1]
    assert (reply.text, reply.status) == ("3648.", "complete")
    assert [(made.name, made.arguments, made.result) for made in reply.calls] == [
        ("calculator", {"expression": "48*76"}, "3648")
    ]
    first, second = server.requests
    assert first["tools"] == second["tools"]
    assert first["tools"][0]["function"]["name"] == "calculator"
    asked, told = second["messages"][1:]
    (made,) = asked["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"expression": "48*76"}
    assert told == {"role": "tool", "tool_call_id": made["id"], "content": "3648"}
    shown = [part.text for part in read(session, reply.id).prompt.segments if part.kind == "tool"]
    assert shown == ["<tool_response>\n3648\n</tool_response>\n"]


@pytest.mark.parametrize("pieces", [['{"expression": '], ["no JSON"], ["[" * 5_000]])
def test_a_call_of_a_server_that_is_no_json_is_text(server, session, pieces):
    server.stream = calls_of(*pieces)
    session.set_tools(["calculator"])
    list(session.say("How many?"))
    reply = session.chat.messages[-1]
    assert (reply.status, reply.calls) == ("complete", ())
    assert pieces[0].strip() in reply.text


def test_a_call_without_arguments_and_odd_calls(server, session):
    def answer(request):
        messages = request["messages"]
        assert isinstance(messages, list)
        if messages[-1]["role"] == "tool":
            odd = [5, {"index": "x"}, {"function": 7}, {}]
            return [delta(tool_calls=odd), *replied("Noon.")]
        return [*calls_of(name="clock")]

    server.stream = answer
    session.set_tools(["clock"])
    list(session.say("What time is it?"))
    assert session.chat.messages[-1].text == "Noon."
    assert session.chat.messages[-1].calls[0].status == "done"
