"""Chats with a model that thinks before it replies."""

import threading

import pytest
from fakes import ScriptedModel
from sessions import session_with
from thinking_model import SPECIAL, TEMPLATE, thinking_model

from chatapp.dialogue.events import Options
from chatapp.dialogue.export import to_json, to_training_rows
from chatapp.dialogue.reading import read
from chatapp.dialogue.turn import answer
from chatapp.dialogue.writers.choosing import choose_template, with_thinking, writer_for
from chatapp.dialogue.writers.prompt import Exchange
from chatapp.engine.events import Token
from chatapp.engine.model import Sampling

REPLY = "<think>\nThey greet me.\n</think>\n\nHello!"
ASKED = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def opened(model, store, **options):
    return session_with(store, model, choose_template(model, ""), **options)


def test_thoughts_are_kept_beside_the_reply_and_out_of_history(tmp_path, store):
    model = thinking_model(tmp_path / "model", [REPLY, "Bye!"])
    session = opened(model, store)
    events = list(session.say("Hi"))
    assert "".join(event.text for event in events[1:]) == "Hello!"
    thought = [event for event in events if isinstance(event, Token) and event.thought is not None]
    reply = session.chat.messages[-1]
    assert (reply.text, reply.thoughts) == ("Hello!", "\nThey greet me.\n")
    assert reply.thought_tokens == len(thought) == 7
    assert store.message(reply.id) == reply
    list(session.say("Bye"))
    assert model.prompts[1] == (
        f"{ASKED}Hello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (session.chat.messages[-1].thoughts, session.chat.messages[-1].thought_tokens) == ("", 0)


@pytest.mark.parametrize("most", [2, 4])
def test_a_thought_that_was_cut_goes_on(tmp_path, store, most):
    model = thinking_model(tmp_path / "model", [REPLY, " me.\n</think>\n\nHello!"])
    session = opened(model, store, sampling=Sampling(max_tokens=most))
    list(session.say("Hi"))
    cut = session.chat.messages[-1]
    assert (cut.text, cut.thoughts) == ("", "\nThey greet"[: (0, 1, 1, 5, 11)[most]])
    session.sampling = Sampling()
    list(session.continue_reply(cut.id))
    reply = session.chat.messages[-1]
    assert model.prompts[1] == f"{ASKED}<think>{cut.thoughts}"
    assert (reply.text, reply.thoughts) == ("Hello!", f"{cut.thoughts} me.\n")
    assert reply.thought_tokens > cut.thought_tokens


def test_a_reply_with_thoughts_goes_on_after_them(tmp_path, store):
    model = thinking_model(tmp_path / "model", [REPLY, " And welcome."])
    session = opened(model, store)
    list(session.say("Hi"))
    reply = session.chat.messages[-1]
    list(session.continue_reply(reply.id))
    assert model.prompts[1] == ASKED + REPLY
    assert session.chat.messages[-1].text == "Hello! And welcome."
    assert session.chat.messages[-1].thoughts == reply.thoughts
    reading = read(session, reply.id)
    assert model.tokenizer.decode(reading.reply_ids) == f"{REPLY} And welcome."


def test_thoughts_that_the_template_begins(tmp_path, store):
    announced = "'<|im_start|>assistant\\n' }}"
    source = TEMPLATE.replace(announced, announced.replace("' }}", "<think>\\n' }}"))
    assert source != TEMPLATE
    replies = ["They greet me.\n</think>\n\nHello!"]
    model = thinking_model(tmp_path / "model", replies, template=source)
    session = opened(model, store)
    list(session.say("Hi"))
    reply = session.chat.messages[-1]
    assert (reply.text, reply.thoughts) == ("Hello!", "They greet me.\n")
    assert model.tokenizer.decode(read(session, reply.id).reply_ids) == replies[0]
    list(session.continue_reply(reply.id))
    assert model.prompts[1] == f"{ASKED}<think>\n{replies[0]}"


def test_marks_that_are_special_tokens(tmp_path, store):
    special = (*SPECIAL, "<think>", "</think>")
    model = thinking_model(tmp_path / "model", [REPLY], special=special)
    model.tokenizer.decode = lambda ids: "".join(  # as real tokenizers do
        model.tokenizer.piece(id) for id in ids if id not in model.tokenizer.special.values()
    )
    generate = model.generate

    def without_names(*arguments, **options):
        for event in generate(*arguments, **options):
            if isinstance(event, Token) and event.piece.strip() in special:
                id = model.tokenizer.special[event.piece.strip()]
                event = Token(id, "", event.piece, event.logprob)
            yield event

    model.generate = without_names
    session = opened(model, store)
    list(session.say("Hi"))
    reply = session.chat.messages[-1]
    assert (reply.text, reply.thoughts) == ("Hello!", "\nThey greet me.\n")
    prompt = writer_for(model, session.template).write(
        None, [Exchange("Hi", "", reply.thoughts)], max_tokens=8
    )
    assert model.tokenizer.special["<think>"] in prompt.ids
    assert (prompt.is_thinking, prompt.segments[-1].kind) == (True, "thinking")


def test_a_stopped_thought_is_all_there(tmp_path, store):
    model = thinking_model(tmp_path / "model", [REPLY])
    session, cancel = opened(model, store), threading.Event()
    for event in session.say("Hi", cancel):
        if isinstance(event, Token) and event.thought == " greet":
            cancel.set()
    reply = session.chat.messages[-1]
    assert (reply.text, reply.thoughts, reply.status) == ("", "\nThey greet", "stopped")


def test_the_switch_is_set_or_there_is_none(tmp_path):
    model = thinking_model(tmp_path / "model", ["Hello!"])
    template = choose_template(model, "")
    off = with_thinking(model, template, False)
    assert off.fingerprint == template.fingerprint
    list(answer(model, off, "Hi", Options(Sampling())))
    list(answer(model, with_thinking(model, off, True), "Hi", Options(Sampling())))
    assert model.prompts == [f"{ASKED}<think>\n\n</think>\n\n", ASKED]
    plain = ScriptedModel(["Yes."])
    with pytest.raises(ValueError, match="the model scripted has no switch for thinking"):
        with_thinking(plain, choose_template(plain, ""), True)


def test_thoughts_are_exported_when_they_are_asked_for(tmp_path, store):
    session = opened(thinking_model(tmp_path / "model", [REPLY]), store)
    list(session.say("Hi"))
    chat, messages = store.chat(session.chat.id), store.path(session.chat.id)
    without, with_thoughts = (
        to_training_rows(chat, messages, thinking=thinking)[0]["messages"][-1]["content"]
        for thinking in (False, True)
    )
    assert (without, with_thoughts) == ("Hello!", REPLY)
    asked, replied = to_json(chat, messages)["messages"]
    assert (replied["content"], replied["thoughts"]) == ("Hello!", "\nThey greet me.\n")
    assert "thoughts" not in asked
