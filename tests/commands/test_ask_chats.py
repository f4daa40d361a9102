"""`ask` with files, instructions by name, and on with a chat of the store."""

import json

import pytest
from fakes import ScriptedModel

from chatapp.common.paths import database_path
from chatapp.dialogue.store import Store
from chatapp.engine.models import loading
from chatapp.tasks.files.documents import DocumentSet


@pytest.fixture
def store(home):
    store = Store(database_path())
    yield store
    store.close()


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """The folder that commands run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def held_chat(store, *said, **values):
    """A chat with these messages, the user's first."""
    chat_id = store.create_chat(model="tiny", template="plain", **values)
    parent = None
    for place, text in enumerate(said):
        role = "assistant" if place % 2 else "user"
        parent = store.add_message(chat_id, parent, role, text).id
    return chat_id


def test_a_question_goes_on_with_the_last_chat(run, use_model, store):
    held_chat(store, "An older one", "Yes.")
    chat_id = held_chat(store, "My name is Ada.", "Hello Ada.", system="Be brief.")
    model = use_model(ScriptedModel([" Ada."]), name="tiny")
    assert run("ask", "-c", "What is my name?") == (0, "Ada.\n", "")
    assert "Be brief." in model.prompts[0]
    assert "User: My name is Ada.\nAssistant: Hello Ada." in model.prompts[0]
    assert [message.text for message in store.path(chat_id)] == [
        "My name is Ada.",
        "Hello Ada.",
        "What is my name?",
        "Ada.",
    ]


def test_messages_left_out_of_the_window_are_counted(run, use_model, store):
    held_chat(store, "The secret is 7. " + "word " * 90, "Good.", "word " * 90, "Good.")
    model = use_model(ScriptedModel([" No."], context=256), name="tiny")
    told = run("ask", "-c", "What is the secret?", "--max-tokens", "64")
    assert told == (0, "No.\n", "chatapp: messages out of context: 2\n")
    assert "secret is 7" not in model.prompts[0]


def test_a_chat_goes_on_with_documents_and_tools(run, use_model, store, in_folder):
    (in_folder / "notes.md").write_text("A walrus eats clams.")
    chat_id = held_chat(store, "Hi", "Hello.")
    model = use_model(ScriptedModel([" <<2+2=", " Clams."]), name="tiny")
    options = ("--docs", "notes.md", "--tools", "calculator")
    result = run("ask", "-c", "What does a walrus eat?", *options, "--json")
    document = json.loads(result.out)
    assert document["reply"] == "<<2+2=4>> Clams."
    assert [source["number"] for source in document["sources"]] == [1]
    assert "A walrus eats clams.\n\nWhat does" in model.prompts[0]
    # The chat keeps them, wherever it goes on.
    chat = store.chat(chat_id)
    assert (chat.documents, chat.tools) == (
        DocumentSet((str(in_folder / "notes.md"),)),
        ("calculator",),
    )
    reply = store.path(chat_id)[-1]
    assert (len(reply.sources), len(reply.calls)) == (1, 1)


@pytest.mark.parametrize(("option", "value"), [("--docs", "gone"), ("--tools", "gone")])
def test_what_cannot_be_had_is_not_for_the_chat(run, use_model, store, option, value):
    chat_id = held_chat(store, "Hi", "Hello.")
    use_model(ScriptedModel([" Yes."]), name="tiny")
    result = run("ask", "-c", "Well?", option, value)
    assert (result.status, "gone" in result.err) == (2, True)
    chat = store.chat(chat_id)
    assert (chat.documents, chat.tools, len(store.path(chat_id))) == (None, (), 2)


def test_the_chats_own_model_and_sampling_are_used(run, store, monkeypatch):
    chat_id = held_chat(store, "Hi", "Hello.")
    store.set_chosen(chat_id, {"temperature": 0.25, "top_k": 7})
    loaded = []

    def load_model(name, **_):
        loaded.append(name)
        return model

    model = ScriptedModel([" Ok.", " Ok."])
    monkeypatch.setattr(loading, "load_model", load_model)
    assert run("ask", "--chat", str(chat_id), "Well?").status == 0
    run("ask", "--chat", str(chat_id), "Well?", "--top-k", "9", "--model", "other")
    assert loaded == ["tiny", "other"]
    drawn = [(sampling.temperature, sampling.top_k) for sampling in model.samplings]
    assert drawn == [(0.25, 7), (0.25, 9)]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-c"], "there is no chat to continue yet"),
        (["--chat", "7"], "there is no chat 7"),
        (["-c", "--chat", "7"], "not both"),
        (["--persona", "pirat"], "there is no persona 'pirat'"),
        (["--persona", "a", "--system", "b"], "not both"),
        (["--system", "./none.txt"], "there is no such file"),
        (["-f", "none.txt"], "none.txt: cannot be read"),
        (["-f", "."], "cannot be read"),
        (["-f", "bytes.bin"], "bytes.bin is not text"),
        (["-f", "latin.txt"], "latin.txt, line 2: is not valid UTF-8"),
    ],
)
def test_what_the_user_can_put_right(run, use_model, tmp_path, monkeypatch, flags, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bytes.bin").write_bytes(b"a\0b")
    (tmp_path / "latin.txt").write_bytes(b"a\n\xe4")
    model = use_model(ScriptedModel([" Ok."]))
    result = run("ask", "Hi", *flags)
    assert (result.status, result.out) == (2, "")
    assert words in result.err
    assert result.err.count("\n") == 1
    assert not model.prompts


def test_a_chat_keeps_its_instructions_and_is_not_deleted(run, use_model, store):
    chat_id = held_chat(store, "Hi", "Hello.")
    use_model(ScriptedModel([" Ok."]))
    assert "already has instructions" in run("ask", "-c", "Hi", "--system", "Be rude.").err
    store.bin_chat(chat_id)
    assert f"chat {chat_id} is deleted" in run("ask", "--chat", str(chat_id), "Hi").err


def test_files_are_put_into_the_message(run, use_model, tmp_path):
    for name in ("one.txt", "two.md"):
        (tmp_path / name).write_text(f"what {name} says — ü\n")
    model = use_model(ScriptedModel([" Ok."]))
    flags = [word for name in ("one.txt", "two.md") for word in ("-f", str(tmp_path / name))]
    assert run("ask", "Compare:", *flags, stdin=b"piped").status == 0
    assert model.prompts[0].endswith(
        "User: Compare:\n\none.txt:\nwhat one.txt says — ü\n\n"
        "two.md:\nwhat two.md says — ü\n\npiped\nAssistant:"
    )
