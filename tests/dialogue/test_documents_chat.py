"""A chat over documents: passages in the prompt, what is left out, stored, read again."""

from pathlib import Path

import pytest
from fakes import ScriptedModel
from sessions import session_with

from chatapp.dialogue.chat import Chat
from chatapp.dialogue.documents import index
from chatapp.dialogue.documents.sources import NO_PASSAGE
from chatapp.dialogue.events import Started
from chatapp.dialogue.reading import draft, read, usage
from chatapp.dialogue.session import Session
from chatapp.engine.events import Finished
from chatapp.prompting.template import CHAT
from chatapp.tasks.files.documents import DocumentsError, DocumentSet, least_covered


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CHATAPP_HOME", str(tmp_path / "home"))


@pytest.fixture
def notes(tmp_path, monkeypatch):
    # The second file has little of the question.
    monkeypatch.setattr(index, "least_covered", lambda rarities: 0.0)
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "walrus.txt").write_text("A walrus eats clams.\n\nIt lives in the north.")
    (folder / "horse.md").write_text("# Horses\n\nA horse eats hay.\n")
    return folder


def session_of(store, notes, model=None, **options):
    documents = DocumentSet((str(notes),), limit=2)
    model = model or ScriptedModel([" Yes."] * 9, context=200)
    return session_with(store, model, CHAT, documents=documents, **options)


WALRUS = "Passages of documents:\n\n[1] walrus.txt, line 1\nA walrus eats clams.\n\nIt lives"


def test_passages_stand_before_the_question_as_their_own_segments(store, notes):
    model = ScriptedModel([" Clams."], context=200)
    session = session_of(store, notes, model)
    list(session.say("What does a walrus eat?"))
    reply = session.chat.messages[-1]
    assert [(Path(each.file).name, each.place, each.number) for each in reply.sources] == [
        ("walrus.txt", "line 1", 1),
        ("horse.md", "Horses, line 1", 2),
    ]
    prompt = read(session, reply.id).prompt
    documents = [segment.text for segment in prompt.segments if segment.kind == "document"]
    assert documents[0].startswith(WALRUS)
    assert documents[1] == "[2] horse.md, Horses, line 1\n# Horses\n\nA horse eats hay.\n\n"
    users = [segment.text for segment in prompt.segments if segment.kind == "user"]
    assert users == ["What does a walrus eat?"]
    assert store.sent_prompt(reply.id) == prompt.text
    assert session.chat.messages[0].text == "What does a walrus eat?", (
        "the message is as it was said"
    )


def test_a_chat_that_is_opened_again_shows_what_was_sent_whatever_became_of_the_files(store, notes):
    session = session_of(store, notes)
    list(session.say("What does a walrus eat?"))
    sent = read(session, session.chat.messages[-1].id).prompt
    (notes / "walrus.txt").write_text("It eats nothing.")
    again = Session(Chat(store, session.chat.id), session.model, template=CHAT)
    reading = read(again, again.chat.messages[-1].id)
    assert reading.prompt == sent
    assert not reading.outdated
    assert again.chat.documents == session.chat.documents
    assert usage(again) == usage(session)
    list(again.continue_reply(again.chat.messages[-1].id))
    assert again.chat.messages[-1].sources == sent.sources


def test_the_next_message_has_its_own_passages_and_the_last_none(store, notes):
    session = session_of(store, notes)
    list(session.say("What does a walrus eat?"))
    list(session.say("And the horse?"))
    prompt = read(session, session.chat.messages[-1].id).prompt
    assert prompt.text.count("Passages of documents:") == 1
    assert prompt.sources[0].file.endswith("horse.md")
    assert prompt.text.index("walrus eat?") < prompt.text.index("Passages of documents:")


def test_a_reply_without_a_passage_says_so(store, notes, monkeypatch):
    monkeypatch.setattr(index, "least_covered", least_covered)
    session = session_of(store, notes)
    list(session.say("What does a walrus eat?"))
    assert NO_PASSAGE not in store.message(session.chat.messages[-1].id).remark
    events = list(session.say("Which planet has rings?"))
    assert isinstance(events[-1], Finished)
    assert events[-1].message == NO_PASSAGE
    assert store.message(session.chat.messages[-1].id).remark == NO_PASSAGE


def test_another_reply_is_looked_up_anew(store, notes):
    session = session_of(store, notes)
    list(session.say("What does a walrus eat?"))
    (notes / "walrus.txt").write_text("A walrus eats mussels.")
    list(session.regenerate(session.chat.messages[-1].id))
    assert "mussels" in session.chat.messages[-1].sources[0].text


def test_what_does_not_fit_is_left_out_and_said(store, notes):
    (notes / "walrus.txt").write_text("walrus " * 60)
    (notes / "horse.md").write_text("A walrus is no horse.")
    session = session_of(store, notes, ScriptedModel([" Yes."] * 9, context=100))
    list(session.say("walrus"))
    reply = session.chat.messages[-1]
    assert [(each.number, Path(each.file).name) for each in reply.sources] == [
        (0, "walrus.txt"),
        (1, "horse.md"),
    ]
    prompt = read(session, reply.id).prompt
    assert "[1] horse.md" in prompt.text
    assert len(prompt.ids) <= 75, "the reply keeps its quarter of the window"


def test_passages_push_out_old_turns_not_the_question(store, notes):
    (notes / "walrus.txt").write_text("walrus " * 30)
    model = ScriptedModel(["word " * 20] * 9, context=100)
    session = session_of(store, notes, model)
    for _ in range(4):
        list(session.say("walrus"))
    reading = read(session, session.chat.messages[-1].id)
    assert reading.left_out
    assert reading.prompt.sources[0].number == 1


def test_documents_that_are_gone_are_told_and_nothing_is_stored(store, notes):
    session = session_of(store, notes)
    for file in notes.iterdir():
        file.unlink()
    with pytest.raises(DocumentsError, match="no text to search"):
        list(session.say("walrus"))
    assert store.chats() == []
    session.chat.use_documents(None)
    list(session.say("walrus"))
    assert session.chat.messages[-1].sources == ()


def test_documents_are_set_for_the_chat_and_kept(store, notes):
    session = Session(Chat(store), ScriptedModel([" Yes."] * 9, context=200), template=CHAT)
    list(session.say("walrus"))
    session.chat.use_documents(DocumentSet((str(notes),), "both:tfidf"))
    started = next(iter(session.say("walrus")))
    assert isinstance(started, Started)
    assert started.message.sources[0].number == 1
    assert store.chat(1).documents == DocumentSet((str(notes),), "both:tfidf")
    session.chat.use_documents(None)
    assert store.chat(1).documents is None


def test_a_draft_is_looked_up_without_being_stored(store, notes):
    session = session_of(store, notes)
    reading = draft(session, "What does a walrus eat?")
    assert reading.prompt.sources[0].number == 1
    assert store.chats() == []
