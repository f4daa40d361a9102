"""What the model read for a reply, and another reply that begins with chosen tokens."""

import pytest
from fakes import ScriptedModel, WordTokenizer
from tiny import write_tiny_gpt2

from chatapp.dialogue.chat import Chat
from chatapp.dialogue.events import Options, Started
from chatapp.dialogue.reading import read, usage
from chatapp.dialogue.session import Session
from chatapp.dialogue.turn import turn
from chatapp.dialogue.writers.choosing import writer_for
from chatapp.dialogue.writers.prompt import Exchange
from chatapp.engine.events import Finished
from chatapp.engine.model import ContextOverflow, Sampling
from chatapp.engine.models.loading import load_model
from chatapp.prompting.template import CHAT, PLAIN


def test_a_reply_is_read_with_its_prompt_and_tokens(store):
    model = ScriptedModel([" One two.", " Three four."])
    session = Session(Chat(store), model, template=PLAIN)
    for text in ("Hello", "And?"):
        list(session.say(text))
    reading = read(session, session.chat.messages[-1].id)
    assert reading.prompt.text == model.prompts[1]
    assert reading.reply == session.chat.messages[-1]
    assert model.tokenizer.decode(reading.reply_ids) == " Three four."
    assert reading.left_out == ()
    of_user = read(session, session.chat.messages[0].id)
    assert of_user.prompt.text == model.prompts[0]
    assert (of_user.reply, of_user.reply_ids) == (None, ())


def test_what_does_not_fit_is_named(store):
    session = Session(Chat(store), ScriptedModel([" yes" * 8]), template=CHAT)
    session.model.context = 64
    for number in range(8):
        list(session.say(f"question {number}"))
    reading = read(session, session.chat.messages[-1].id)
    dropped = usage(session).dropped
    assert dropped > 0
    assert [message.id for message in reading.left_out] == [
        message.id for message in session.chat.messages[:dropped]
    ]
    foreign = store.add_message(store.create_chat(), None, "user", "x").id
    with pytest.raises(ValueError, match="is not in this chat"):
        read(session, foreign)


def test_a_branch_is_a_sibling_that_begins_as_one_wants(store):
    model = ScriptedModel([" One two three.", " and so on."])
    session = Session(Chat(store), model, template=CHAT)
    list(session.say("Count"))
    first = session.chat.messages[-1]
    ids = read(session, first.id).reply_ids
    begin = [*ids[:1], model.tokenizer.token(" apple")]
    started, *tokens, finished = session.branch(first.id, begin)
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    assert "".join(event.text for event in tokens) == "One apple and so on."
    branch = session.chat.messages[-1]
    assert branch.text == "One apple and so on."
    assert (branch.parent_id, branch.sibling, branch.siblings) == (first.parent_id, 2, 2)
    assert store.message(first.id).text == "One two three."
    assert model.prompts[1].endswith("Assistant: One apple")
    assert finished.reply_tokens == 5
    assert store.generations(branch.chat_id)[-1].reply_tokens == 5
    # The tokens stay what they were, also for the next turn's prompt.
    assert read(session, branch.id).reply_ids[:2] == tuple(begin)


def test_a_branch_may_end_at_once(store):
    model = ScriptedModel([" One two three."])
    session = Session(Chat(store), model, template=CHAT)
    list(session.say("Count"))
    reply = session.chat.messages[-1]
    begin = [*read(session, reply.id).reply_ids[:2], model.tokenizer.end_id]
    model.tokenizer.decode = lambda ids: "".join(model.tokenizer.piece(id) for id in ids if id)
    model.tokenizer._pieces[0] = ""
    *_, finished = session.branch(reply.id, begin)
    assert (finished.reason, finished.reply_tokens) == ("stop", 2)
    assert (session.chat.messages[-1].text, session.chat.messages[-1].status) == (
        "One two",
        "complete",
    )
    assert len(model.prompts) == 1, "the model was not asked"


def test_branches_that_cannot_be(store):
    model = ScriptedModel([" One two three."], context=20)
    session = Session(Chat(store), model, template=CHAT)
    list(session.say("Count"))
    user, reply = session.chat.messages
    with pytest.raises(ValueError, match="is from the user"):
        list(session.branch(user.id, [1]))
    with pytest.raises(ContextOverflow, match="20 tokens"):
        list(session.branch(reply.id, [1] * 20))
    half = model.tokenizer.token("\ufffd")
    with pytest.raises(ValueError, match="part of a character"):
        list(session.branch(reply.id, [half]))
    assert session.chat.messages == [user, reply]
    assert len(store.siblings(reply.id)) == 1


def test_a_branch_of_a_real_model(store, tmp_path):
    model = load_model(str(write_tiny_gpt2(tmp_path / "model", context=128)))
    sampling = Sampling(temperature=0, max_tokens=12)
    session = Session(Chat(store), model, template=CHAT, sampling=sampling)
    list(session.say("Hello"))
    for kept, siblings in (
        (1, 2),
        (4, 3),
    ):  # the first token is the space that a template puts there
        reply = session.chat.messages[-1]
        ids = read(session, reply.id).reply_ids
        list(session.branch(reply.id, ids[:kept]))
        assert session.chat.messages[-1].siblings == siblings
    # Greedy decoding goes the same way from the same place.
    assert session.chat.messages[-1].text.startswith(reply.text)
    assert len(set(reply.text)) > 3


class HoldingTokenizer(WordTokenizer):
    """Its last piece could be the beginning of a character, and is held back."""

    def stream(self):
        return HoldingStream(self)


class HoldingStream:
    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._held = ""

    def push(self, id):
        complete, self._held = self._held, self._tokenizer.piece(id)
        return complete

    def flush(self):
        return self._held


def test_what_the_last_of_the_given_tokens_held_back_comes_with_the_end():
    model = ScriptedModel([])
    model.tokenizer = HoldingTokenizer()
    begin = [*model.tokenizer.encode(" one two"), model.tokenizer.end_id]
    writer, options = writer_for(model, PLAIN), Options(Sampling(), forced=begin)
    _, *tokens, end = turn(model, writer, [Exchange("Count")], options)
    assert [token.text for token in tokens] == ["", "one"]
    assert (end.text, end.reason, end.reply_tokens) == (" two", "stop", 2)
