"""Chats are read from files of three kinds; one with a mistake is left out and named."""

import json
from pathlib import Path
from typing import Any

import pytest

from chatapp.dialogue.documents.sources import Source
from chatapp.dialogue.export import to_json, to_training_rows
from chatapp.dialogue.importing import ImportingError, read_chats, store_chats
from chatapp.dialogue.store import Store
from chatapp.prompting.calls import DEEPEST
from chatapp.prompting.messages import Call

HOSTILE = "[/b] \x1b[2J “quotes” \\n\n\nend \u2028"
TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": HOSTILE}]


def file(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "chats.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def nested(levels: int) -> list[Any]:
    """Lists within each other, of so many levels."""
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_what_was_exported_comes_back(store: Store, tmp_path: Path) -> None:
    chat_id = store.create_chat(system="Be brief.", model="tiny", template="plain")
    first = store.add_message(chat_id, None, "user", "Hi")
    store.add_message(chat_id, first.id, "assistant", HOSTILE, status="stopped")
    document = to_json(store.chat(chat_id), store.path(chat_id))
    for content in (document, [document, document]):
        ids = store_chats(store, read_chats(file(tmp_path, content)).chats)
        assert len(ids) == (len(content) if isinstance(content, list) else 1)
        for id in ids:
            again = to_json(store.chat(id), store.path(id))
            same = ("title", "model", "template", "system")
            assert [again[key] for key in same] == [document[key] for key in same]
            texts = [(m["role"], m["content"], m["status"]) for m in again["messages"]]
            assert texts == [("user", "Hi", "complete"), ("assistant", HOSTILE, "stopped")]
    assert len(store.search("quotes")) == 4


def test_sources_and_calls_come_back(store: Store, tmp_path: Path) -> None:
    chat_id = store.create_chat()
    user = store.add_message(chat_id, None, "user", "Hi")
    sources = (Source("a.md", "line 1", HOSTILE, 2.5, 1), Source("b", "page 2", "No.", 0.5))
    reply = store.add_message(chat_id, user.id, "assistant", "It is 4>>.", sources=sources)
    calls = (
        Call("weather", {"city": HOSTILE, "days": [1, None]}, HOSTILE, "failed", 0),
        Call("calculator", {"expression": "2+2"}, "4", "done", 6, 3),
        Call("search", {"deep": nested(DEEPEST - 1)}, "", "running", 10),  # as the program died
    )
    store.update_calls(reply.id, calls)
    document = to_json(store.chat(chat_id), store.path(chat_id))
    (id,) = store_chats(store, read_chats(file(tmp_path, document)).chats)
    again = store.path(id)[-1]
    assert (again.sources, again.calls) == (sources, calls)


TOO_DEEP = f"message 2, call 2: nests lists and objects deeper than {DEEPEST} levels"
GOOD = {"name": "x", "arguments": {}, "result": "", "status": "done", "at": 0, "inside": 0}


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"calls": 3}, "message 2: 'calls' is the number 3, expected a list"),
        ({"calls": [{**GOOD, "status": "odd"}]}, "message 2, call 1: 'status' is "),
        ({"calls": [GOOD, {**GOOD, "at": -1}]}, "call 2: its place is not in the content"),
        ({"calls": [{**GOOD, "inside": 99}]}, "call 1: its place is not in the content"),
        ({"calls": [{"name": "x"}]}, "message 2, call 1: 'arguments' is missing"),
        *(
            ({"calls": [GOOD, {**GOOD, "arguments": {"a": nested(levels)}}]}, TOO_DEEP)
            for levels in (DEEPEST, 900)
        ),
        ({"sources": [{"file": "a"}]}, "message 2, source 1: 'place' is missing"),
        ({"sources": ["a"]}, "message 2, source 1:"),
    ],
)
def test_sources_and_calls_that_are_no_good_are_named(
    tmp_path: Path, more: dict[str, Any], problem: str
) -> None:
    turns = [TURNS[0], {**TURNS[1], "content": "Hello", **more}]
    with pytest.raises(ImportingError) as error:
        read_chats(file(tmp_path, {"messages": turns}))
    assert problem in str(error.value)


def test_calls_of_the_user_are_refused(tmp_path: Path) -> None:
    path = file(tmp_path, {"messages": [{**TURNS[0], "calls": [GOOD]}, TURNS[1]]})
    with pytest.raises(ImportingError) as error:
        read_chats(path)
    assert str(error.value) == (
        f"{path}, message 1: is from 'user' and has calls, which only replies may have"
    )


def test_training_rows_are_chats_a_line(store: Store, tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "system", "content": "Be kind."}, *TURNS]},
        {"messages": [*TURNS, {"role": "user", "content": [{"type": "text", "text": "Bye"}]}]},
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    ids = store_chats(store, read_chats(file(tmp_path, lines)).chats)
    assert store.chat(ids[0]).system == "Be kind."
    assert store.chat(ids[0]).title == "Hi"
    assert to_training_rows(store.chat(ids[0]), store.path(ids[0])) == [rows[0]]
    assert [message.text for message in store.path(ids[1])] == ["Hi", HOSTILE, "Bye"]


def node(parent: str | None, role: str | None, *parts: Any) -> dict[str, Any]:
    """A node of ChatGPT's tree."""
    message = role and {"author": {"role": role}, "content": {"parts": list(parts)}}
    return {"parent": parent, "message": message}


def test_chatgpts_export_is_followed_to_its_current_node(store: Store, tmp_path: Path) -> None:
    document = {
        "title": "Tea",
        "current_node": "f",
        "mapping": {
            "a": node(None, None),
            "b": node("a", "system", ""),
            "c": node("b", "user", "Tea?"),
            "other": node("c", "assistant", "No."),
            "d": node("c", "assistant", "I look it up."),
            "e": node("d", "tool", "results"),
            "f": node("e", "assistant", "Yes.", {"image": 1}),
        },
    }
    (id,) = store_chats(store, read_chats(file(tmp_path, [document])).chats)
    assert store.chat(id).title == "Tea"
    assert [message.text for message in store.path(id)] == ["Tea?", "I look it up.\n\nYes."]


def test_a_chat_that_cannot_be_read_leaves_the_others(tmp_path: Path) -> None:
    tree = {"a": node(None, "user", "Hi"), "b": node("a", "assistant", "Yes.")}
    trees = [{"mapping": tree, "current_node": current} for current in ("a", None, "gone", "c")]
    imported = read_chats(path := file(tmp_path, [*trees, {"mapping": tree}, 3]))
    assert [chat.messages[-1].text for chat in imported.chats] == ["Hi", "Yes.", "Yes."]
    problems = ["chat 3: 'mapping' has no node 'gone'", "chat 4: 'mapping' has no node 'c'"]
    problems.append("chat 6: is the number 3, expected an object")
    assert imported.faults == tuple(f"{path}, {problem}" for problem in problems)


def test_chats_without_a_message_are_left_out_and_counted(tmp_path: Path) -> None:
    tree = {"a": node(None, None), "b": node("a", "user", "Hi")}
    documents = [
        {"mapping": {}, "current_node": None},
        {"mapping": tree, "current_node": "b"},
        {"mapping": tree, "current_node": "a"},
        {"messages": []},
    ]
    imported = read_chats(file(tmp_path, documents))
    assert [chat.messages[0].text for chat in imported.chats] == ["Hi"]
    assert imported.empty == 3


def test_pictures_and_speech_of_chatgpt_keep_their_turns(tmp_path: Path) -> None:
    tree = {
        "a": node(None, "user", {"content_type": "image_asset_pointer"}),
        "b": node("a", "assistant", "", "A walrus."),
        "c": node("b", "user", {"content_type": "audio_transcription", "text": "Sure?"}),
        "d": node("c", "assistant", "Yes.") | {"parent": "c"},
    }
    (chat,) = read_chats(file(tmp_path, {"mapping": tree, "current_node": "d"})).chats
    assert [message.text for message in chat.messages] == ["", "A walrus.", "Sure?", "Yes."]


ODD = (None, 0, True, 1.5, "x", [], [None], {}, {"x": None})


def texts_or_sentence(path: Path) -> list[str] | str:
    """The texts of a file's only chat, or why there is none."""
    try:
        (chat,) = read_chats(path).chats
    except ImportingError as error:
        return str(error)
    return [message.text for message in chat.messages]


@pytest.mark.parametrize("key", ["parent", "message", "author", "role", "content", "parts"])
@pytest.mark.parametrize("value", ODD)
def test_odd_values_in_chatgpts_tree_are_understood_or_told_in_words(
    tmp_path: Path, key: str, value: Any
) -> None:
    tree = {"a": node(None, "user", "Hi"), "b": node("a", "assistant", "Hello.")}
    message: Any = tree["b"]["message"]
    holder: dict[str, dict[str, Any]] = {"role": message["author"], "parts": message["content"]}
    holder |= {"author": message, "content": message}
    holder.get(key, tree["b"])[key] = value
    path = file(tmp_path, {"mapping": tree, "current_node": "b"})
    match texts_or_sentence(path):
        case str(sentence):
            assert sentence.startswith(str(path))
        case texts:
            # The message that the odd value left without text is none; without a parent it is
            # the first.
            assert texts == (["", "Hello."] if key == "parent" else ["Hi"])


@pytest.mark.parametrize("key", ["messages", "mapping", "current_node", "title", "system", "model"])
@pytest.mark.parametrize("value", ODD)
def test_odd_values_in_a_chat_are_understood_or_told_in_words(
    tmp_path: Path, key: str, value: Any
) -> None:
    path = file(tmp_path, {"messages": TURNS, key: value})
    match texts_or_sentence(path):
        case str(sentence):
            assert sentence.startswith(str(path))
        case texts:
            assert texts == ["Hi", HOSTILE]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "contains no chat"),
        ("3", "is the number 3, expected an object"),
        (
            '{"messages": [{"role": "user", "content": "x"}]}\n{"messages": [',
            "line 2: is not valid JSON",
        ),
        ([{"messages": []}, {"title": "x"}], "chat 2: 'messages' is missing, expected a list"),
        ({"messages": []}, "has no message"),
        ({"messages": ["x"]}, "message 1: is the string 'x', expected an object"),
        (
            {"messages": [{"role": "robot", "content": "x"}]},
            "message 1: 'role' is the string 'robot', expected",
        ),
        ({"messages": [{"role": "user"}]}, "message 1: 'content' is missing, expected text"),
        ({"messages": [{"role": "user", "content": [{"image": 1}]}]}, "is not a text part"),
        ({"messages": TURNS[1:]}, "message 1: is from 'assistant', expected 'user'"),
        ({"messages": [*TURNS, TURNS[1]]}, "message 3: is from 'assistant', expected 'user'"),
        ({"messages": [*TURNS, {"role": "system", "content": "x"}]}, "only the first message"),
        (
            {"messages": [TURNS[0] | {"status": "odd"}]},
            "'status' is the string 'odd', expected one of",
        ),
        ({"messages": TURNS, "title": 7}, "'title' is the number 7, expected text"),
        ({"mapping": {}, "current_node": "a"}, "'mapping' has no node 'a'"),
        ({"mapping": {"a": {"parent": "a"}}, "current_node": "a"}, "a cycle at node 'a'"),
        (
            {
                "mapping": {"a": node("b", "user", "Hi"), "b": node("a", "assistant", "Hello.")},
                "current_node": "b",
            },
            "a cycle at node 'b'",
        ),
        ({"mapping": {"a": node("gone", "user", "Hi")}, "current_node": "a"}, "no node 'gone'"),
        ({"mapping": []}, "'mapping' is a list, expected an object"),
        ({"mapping": {"a": {"message": "x"}}, "current_node": "a"}, "is the string 'x', expected"),
        ({"mapping": {}, "current_node": None}, "has no message"),
        ([{"messages": []}, {"messages": []}], "has no message"),
        pytest.param(f"[{'9' * 5000}]", "is not valid JSON", id="digits"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path: Path, content: Any, words: str) -> None:
    path = file(tmp_path, content)
    with pytest.raises(ImportingError) as caught:
        read_chats(path)
    assert str(caught.value).startswith(str(path))
    assert words in str(caught.value)


def test_files_that_cannot_be_read_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ImportingError, match="cannot be read"):
        read_chats(tmp_path / "missing.json")
    path = tmp_path / "latin.json"
    path.write_bytes(b'{"messages": "\xe4"}')
    with pytest.raises(ImportingError, match="not valid UTF-8"):
        read_chats(path)


def test_chats_are_stored_as_a_whole_or_not_at_all(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = read_chats(file(tmp_path, [{"messages": TURNS}] * 3)).chats
    add, calls = store.add_messages, []

    def failing(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise RuntimeError("no more room")
        return add(*arguments, **options)

    monkeypatch.setattr(store, "add_messages", failing)
    with pytest.raises(RuntimeError):
        store_chats(store, chats)
    assert store.chats() == []


def test_what_is_imported_is_indexed_together_and_what_comes_later_is_indexed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatapp.dialogue.importing._INDEX_EVERY", 3)
    chats = read_chats(file(tmp_path, [{"messages": TURNS}] * 4)).chats
    stopped = iter([None, KeyboardInterrupt()])

    def stop(done: int, of: int) -> None:
        if (error := next(stopped)) is not None:
            raise error

    with pytest.raises(KeyboardInterrupt):
        store_chats(store, chats * 20, stop)
    ids = store_chats(store, chats)
    assert {hit.chat_id for hit in store.search("quotes")} == set(ids)
    store.add_message(ids[0], None, "user", "It goes on.")
    assert [hit.chat_id for hit in store.search("goes")] == [ids[0]]
    assert len(store.search("quotes")) == len(ids)


def test_a_message_of_a_tool_is_left_out(tmp_path: Path) -> None:
    rows = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "18 degrees", "tool_call_id": "1"},
        {"role": "assistant", "content": "Mild."},
    ]
    (chat,) = read_chats(file(tmp_path, {"messages": rows})).chats
    assert [(each.role, each.text) for each in chat.messages] == [
        ("user", "Weather?"),
        ("assistant", "Mild."),
    ]


def test_a_chat_of_chatgpt_that_the_assistant_begins(tmp_path: Path) -> None:
    def node(parent: str | None, role: str, text: str) -> dict[str, Any]:
        message = {"author": {"role": role}, "content": {"parts": [text]}}
        return {"parent": parent, "message": message}

    mapping = {"a": node(None, "assistant", "Welcome."), "b": node("a", "user", "Hi")}
    (chat,) = read_chats(file(tmp_path, [{"mapping": mapping, "current_node": "b"}])).chats
    assert [(each.role, each.text) for each in chat.messages] == [
        ("user", ""),
        ("assistant", "Welcome."),
        ("user", "Hi"),
    ]


def test_a_long_import_shows_how_far_it_is_and_can_be_stopped(store: Store, tmp_path: Path) -> None:
    turns = [turn for _ in range(400) for turn in TURNS[-2:]]
    path = file(tmp_path, [{"messages": turns}] * 3)
    read: list[tuple[int, int]] = []
    chats = read_chats(path, lambda done, of: read.append((done, of))).chats
    assert read == [(0, 3), (1, 3), (2, 3)]
    stored: list[tuple[int, int]] = []

    def stop(done: int, of: int) -> None:
        stored.append((done, of))
        if done >= 1_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store_chats(store, chats, stop)
    assert stored[-1] == (1_000, 3 * len(turns))
    assert store.chats() == []
    (first, *_) = store_chats(store, chats)
    messages = store.path(first)
    assert [message.text for message in messages] == [turn["content"] for turn in turns]
    assert [message.sibling for message in messages] == [1] * len(turns)


def test_an_import_asks_the_store_once_a_message(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    rows = store._database.rows

    def counted(statement: str, *values: Any) -> Any:
        statements.append(statement)
        return rows(statement, *values)

    turns = [turn for _ in range(100) for turn in TURNS[-2:]]
    chats = read_chats(file(tmp_path, {"messages": turns})).chats
    monkeypatch.setattr(store._database, "rows", counted)
    store_chats(store, chats)
    assert len(statements) < len(turns) + 20
