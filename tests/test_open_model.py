"""The door for Python: its guide runs line by line, and it says what the commands say."""

import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import chatapp
from chatapp.common.userfiles import UserError
from chatapp.dialogue.store import Store
from chatapp.engine.errors import ModelError

GUIDE = Path(chatapp.__file__).parent / "docs" / "python.md"


@pytest.fixture(scope="module")
def model():
    return chatapp.load("bundled")


def test_every_block_of_the_guide_runs_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    said = capsys.readouterr().out
    assert len(blocks) == 4
    assert "Hello! How are you?" in said
    assert "'role': 'assistant'" in said or "role='assistant'" in said
    assert "without 3.5 4.mlp" in said
    assert "\nspam\n" in said
    measured = {(row["model"], row["shots"]) for row in names["measured"].rows}
    assert measured == {("bundled", 0), ("bundled", 4)}


def test_the_package_is_imported_at_once_and_the_door_at_its_first_use():
    code = (
        "import sys, chatapp, finetune\n"
        "assert not {'torch', 'rich', 'pydantic', 'chatapp.open_model'} & set(sys.modules)\n"
        "assert {*chatapp.__all__} <= {*dir(chatapp)} and 'chatapp.open_model' not in sys.modules\n"
        "assert chatapp.load and 'chatapp.open_model' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        chatapp.lode  # type: ignore[attr-defined]  # noqa: B018


def test_a_completion_and_a_view_are_those_of_the_commands(model):
    words = ["complete", "Once upon", "--max-tokens", "12", "--seed", "3"]
    printed = answer_of(*words, "--precision", "float32")
    completed = model.complete("Once upon", max_tokens=12, seed=3)
    assert str(completed) == printed["reply"]
    assert len(completed.tokens) == printed["reply_tokens"] == 12

    printed = answer_of("inspect", "why", "Once upon a", "--answer", " time")
    why = model.inspect("Once upon a").why(" time")
    assert json.loads(json.dumps(why.to_json())) == printed["why"]


def answer_of(*words):
    """What the program prints as JSON."""
    command = [sys.executable, "-m", "chatapp", *words, "--json"]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return dict(json.loads(found.stdout))


def test_what_is_changed_inside_lasts_as_long_as_the_context(model):
    chat = model.chat(temperature=0)
    before = model.inspect("Once upon a").next().to_json()
    with model.changed("3"), model.changed("4.mlp") as changed:
        assert changed is model
        assert "without 3 4.mlp" in repr(model).replace(",", "")
        assert model.inspect("Once upon a").next().to_json() != before
        chat.say("Hello!").finish()
        completed = model.complete("Once", max_tokens=2)
        with pytest.raises(UserError, match=r"without 3.*unchanged models"):
            chatapp.prompt_file("spam").run(model, "You won!")
    assert chat.messages[-1].changes
    for shown in (chat, chat.reply, completed):
        assert "(without 3 4.mlp)" in shown._repr_html_()
    assert not model.changes
    assert model.inspect("Once upon a").next().to_json() == before
    with pytest.raises(ValueError, match="99"), model.changed("99.mlp"):
        pass
    assert not model.changes


def test_a_reply_that_is_left_keeps_its_text_and_the_next_one_finishes_the_last(model):
    with model.chat(temperature=0) as chat:
        for token in chat.say("Hello!"):
            assert 0 < token.probability <= 1
            break
        left = chat.messages[-1]
        assert (left.status, left.text) == ("stopped", "Hello")
        assert "Hello" in chat.reply._repr_html_()
        unread = chat.say("What is your name?")
        second = chat.say("Who are you?")
        assert unread.message.text == str(unread)
        assert unread.finished.reason == "stop"
        assert str(second) == chat.messages[-1].text
        assert str(unread) == chat.messages[3].text
        assert len(chat.messages) == 6
        assert chat.inspect().tokens().reading


def test_messages_that_the_window_has_no_room_for_are_counted(model):
    with model.chat(max_tokens=2) as chat:
        str(chat.say("word " * 600))
        with pytest.warns(UserWarning, match="messages out of context: 2"):
            assert str(reply := chat.say("word " * 600))
    assert reply.left_out == 2


def test_a_stored_chat_goes_on_in_the_store(model):
    from chatapp.common.paths import database_path
    from chatapp.dialogue.chat import Chat
    from chatapp.dialogue.session import Session

    store = Store(database_path())
    chat = Chat(store)
    list(Session(chat, model.model).say("Hello!"))
    store.close()
    with chatapp.open_chat(chat.id, model) as opened:
        reply = str(opened.say("What is your name?"))
    store = Store(database_path())
    assert [message.text for message in store.path(chat.id)][-2:] == ["What is your name?", reply]
    store.close()


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        (lambda m: m.complete("x", temperatur=1), "temperature"),
        (lambda m: m.complete("x", temperature=-1), "temperature"),
        (lambda m: m.complete("x", pattern="a", grammar="b"), "pattern and grammar"),
        (lambda m: m.complete("x", pattern="("), "pattern"),
        (lambda m: m.complete(" "), "empty"),
        (lambda m: m.chat().say(""), "empty"),
        (lambda m: m.chat().say("x").message, "not begun"),
        (lambda m: m.chat().inspect(), "no messages"),
        (lambda m: m.chat(template="nope"), "nope"),
        (lambda m: m.chat(tools=["nope"]), "nope"),
        (lambda m: m.inspect("x").why(nope=1), "answer"),
        (lambda m: m.inspect("x").wy(), "why"),
        (lambda m: m.inspect("x").why(token=7), "--token is 7"),
        (lambda m: m.inspect().why(), "no text"),
        (lambda m: chatapp.prompt_file("nope"), "nope"),
        (lambda m: chatapp.prompt_file("spam").run(m, "x", select="nope"), "nope"),
        (lambda m: chatapp.prompt_file("spam").run(m, ["x", "y"]), "list"),
        (lambda m: chatapp.prompt_file("spam").evaluate(m, "prompts/spam.jsonl", shot=3), "shot"),
        (lambda m: chatapp.open_chat(99), "99"),
    ],
)
def test_a_wrong_value_is_one_sentence(model, wrong, names):
    with pytest.raises((ValueError, TypeError, AttributeError, UserError)) as error:
        wrong(model)  # type: ignore[operator]
    assert names in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_that_does_not_exist_is_a_sentence():
    with pytest.raises(ModelError, match="no-such-folder"):
        chatapp.load("./no-such-folder")


def test_what_a_notebook_shows_holds_foreign_text_as_text(model):
    chat = model.chat(temperature=0)
    chat.say("<script>alert(1)</script>").finish()
    assert "<script>" not in chat._repr_html_()
    assert "&lt;script&gt;" in chat._repr_html_()
    assert "title=" in chat.reply._repr_html_()
    frame = model.inspect("Once <b> upon")._repr_html_()
    assert 'sandbox="allow-scripts"' in frame
    page = unescape(frame.partition('srcdoc="')[2].partition('"')[0])
    assert "<svg" in page
    assert "&lt;" in page
    assert "<b>" not in page
    assert (
        model.inspect("Once").next()._repr_mimebundle_()["text/plain"].startswith("The likeliest")
    )


def test_a_token_is_named_by_its_text_and_a_prompt_file_is_chatted_with(model) -> None:
    look = model.inspect("Anna saw a dog. Anna", temperature=2.0)
    assert look.attention(token=" Anna").to_json() == look.attention(token=-1).to_json()
    with pytest.raises(UserError, match="no token 'Bob'"):
        look.attention(token="Bob")
    assert look.next().sampling.temperature == 2.0
    completed = model.complete("Once upon", max_tokens=3, seed=1)
    assert completed.inspection.tokens().texts[-3:] == tuple(t.piece for t in completed.tokens)
    chat = model.chat(prompt="spam", temperature=0)
    draft = chat.inspect("You won a prize!").prompt()
    assert not chat.messages
    assert len(set(draft.kinds)) > 1
    assert str(chat.say("You won a prize!")) in ("spam", "ham")
    assert chat.inspect().prompt().texts == draft.texts
    assert "title=" in model.complete("Once", max_tokens=2)._repr_html_()


def test_without_the_cache_nothing_is_kept_and_the_tokens_are_the_same(model, monkeypatch):
    read = []
    forward = model.model.decoder.forward

    def counted(ids, *arguments, **options):
        read.append(len(ids))
        return forward(ids, *arguments, **options)

    monkeypatch.setattr(model.model.decoder, "forward", counted)
    text = "One day a cat and a dog met in the garden, and the cat said"
    options = {"temperature": 0, "max_tokens": 6, "repetition_penalty": 1}
    cached = model.complete(text, **options)
    before = len(read)
    whole = model.complete(text, cache=False, **options)
    assert [token.id for token in whole.tokens] == [token.id for token in cached.tokens]
    size = whole.finished.prompt_tokens
    assert read[before:] == [size + number for number in range(6)]
    assert sum(read[:before]) < 2 * size + 12
