"""A reply of a model with parts switched off says so wherever it goes, and teaches nothing."""

import json

import pytest
from fakes import ScriptedModel
from tiny import write_tiny_gpt2

from chatapp.dialogue.chat import Chat
from chatapp.dialogue.events import Started
from chatapp.dialogue.export import to_json, to_markdown, to_training_rows
from chatapp.dialogue.feedback import FeedbackFormat, feedback_rows
from chatapp.dialogue.importing import read_chats, store_chats
from chatapp.dialogue.session import Session
from chatapp.engine.backends.local import LocalModel
from chatapp.engine.decoder.interventions import (
    UNCHANGED,
    Change,
    Interventions,
    parse_parts,
    switched_off,
)
from chatapp.engine.files.model_files import ModelFiles
from chatapp.engine.model import Sampling
from chatapp.prompting.template import PLAIN

GREEDY = Sampling(temperature=0, max_tokens=8)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_tiny_gpt2(tmp_path_factory.mktemp("model"), context=256)


@pytest.fixture
def model(folder):
    return LocalModel.load(ModelFiles.read(folder), name="tiny")


def off(model, names):
    return switched_off(parse_parts(names, model.decoder.architecture))


def reply(session, text):
    events = list(session.say(text))
    started = events[0]
    assert isinstance(started, Started)
    return started.message.id


def test_a_changed_reply_is_marked_and_others_are_not(store, model):
    session = Session(Chat(store), model, template=PLAIN, sampling=GREEDY)
    before = reply(session, "Hi")
    session.chat.interventions = off(model, "1.0 0.mlp")
    changed = reply(session, "Hi")
    session.chat.interventions = UNCHANGED
    after = reply(session, "Hi")
    marks = [store.message(id).changes for id in (before, changed, after)]
    assert marks == ["", "without 1.0 0.mlp", ""]
    # What the changed model computed of the chat is not used by the whole one.
    fresh = LocalModel(model.decoder, model.tokenizer, name="tiny")
    again = Session(Chat(store, session.chat.id), fresh, template=PLAIN, sampling=GREEDY)
    list(again.regenerate(after))
    assert again.chat.messages[-1].text == store.message(after).text


def test_its_text_is_that_of_the_changed_model(store, model, monkeypatch):
    asked = []
    generate = model.generate
    monkeypatch.setattr(
        model, "generate", lambda request: asked.append(request) or generate(request)
    )
    session = Session(Chat(store), model, template=PLAIN, sampling=GREEDY)
    changes = session.chat.interventions = off(model, "0 1.1")
    id = reply(session, "Hi")
    ids = list(asked[0].ids)
    first = int(model.decoder.forward([*model.start, *ids], changes=changes).argmax())
    assert first != int(model.decoder.forward([*model.start, *ids]).argmax())
    expected = "" if first == model.tokenizer.end_id else model.tokenizer.decode([first])
    assert store.message(id).text.startswith(expected.strip())


def test_exports_carry_the_mark_and_imports_keep_it(store, model, tmp_path):
    session = Session(Chat(store), model, template=PLAIN, sampling=GREEDY)
    session.chat.interventions = off(model, "1.0")
    reply(session, "Hi")
    chat_id = session.chat.id
    chat, messages = store.chat(chat_id), store.path(chat_id)
    document = to_json(chat, messages)
    assert document["messages"][1]["changes"] == "without 1.0"
    assert "changes" not in document["messages"][0]
    assert "## Assistant (without 1.0)" in to_markdown(chat, messages)
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(document | {"id": 70}))
    (imported,) = store_chats(store, read_chats(path).chats)
    assert [message.changes for message in store.path(imported.id)] == ["", "without 1.0"]


def test_what_teaches_leaves_changed_replies_out(store):
    chat_id = store.create_chat()
    question = store.add_message(chat_id, None, "user", "Tea?")
    good, changed = (
        store.add_message(chat_id, question.id, "assistant", text) for text in ("Yes.", "Fee.")
    )
    store.update_changes(changed.id, "without 1.0")
    store.set_thumb(good.id, 1)
    store.set_thumb(changed.id, -1)
    rows = list(feedback_rows(store, chat_id, FeedbackFormat.KTO))
    assert [row["completion"][0]["content"] for row in rows] == ["Yes."]
    assert not list(feedback_rows(store, chat_id, FeedbackFormat.DPO))
    chat = store.chat(chat_id)
    assert to_training_rows(chat, store.path(chat_id, good.id))
    assert not to_training_rows(chat, store.path(chat_id, changed.id))


def test_a_reply_that_goes_on_keeps_its_mark(store, model):
    sampling = Sampling(temperature=0, max_tokens=2)
    session = Session(Chat(store), model, template=PLAIN, sampling=sampling)
    session.chat.interventions = off(model, "1.0")
    id = reply(session, "Hi")
    session.chat.interventions = UNCHANGED
    list(session.continue_reply(id))
    assert store.message(id).changes == "without 1.0"


def test_directions_are_added_from_the_reply_on(store):
    class Kept(ScriptedModel):
        def generate(self, request):
            self.request = request
            return super().generate(request)

    model = Kept(["Yes."])
    session = Session(Chat(store), model, template=PLAIN, sampling=GREEDY)
    direction = Change("calm 0.1", "blocks.0", (1.0, 2.0), is_added=True)
    session.chat.interventions = Interventions.of([direction])
    reply(session, "Hi")
    (sent,) = model.request.interventions.changes
    assert sent.start == len(model.request.ids)
