"""This program's chats and OpenAI's messages are read; faults are named; nothing comes twice."""

import json
from dataclasses import replace

import pytest

from chatapp.dialogue.documents.sources import Source
from chatapp.dialogue.export import to_json, to_training_rows
from chatapp.dialogue.importing import ImportingError, read_chats, store_chats
from chatapp.prompting.messages import Call
from chatapp.prompting.thoughts_and_calls import DEEPEST

HOSTILE = "[/b] \x1b[2J “quotes” \\n\n\nend \u2028"
TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": HOSTILE}]


def file(tmp_path, content):
    path = tmp_path / "chats.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def stored(store, imported):
    """Store chats that are not there yet; returns their ids."""
    placed = store_chats(store, imported.chats)
    assert all(is_new and added for _, added, is_new in placed)
    return [id for id, _, _ in placed]


def nested(levels):
    """Lists within each other, of so many levels."""
    value = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_what_was_exported_comes_back(store, tmp_path):
    chat_id = store.create_chat(system="Be brief.", model="tiny", template="plain")
    first = store.add_message(chat_id, None, "user", "Hi")
    store.add_message(chat_id, first.id, "assistant", HOSTILE, status="stopped")
    document = to_json(store.chat(chat_id), store.path(chat_id))
    for content in (document | {"id": 70}, [document | {"id": 80}, document | {"id": 90}]):
        ids = stored(store, read_chats(file(tmp_path, content)))
        assert len(ids) == (len(content) if isinstance(content, list) else 1)
        for id in ids:
            again = to_json(store.chat(id), store.path(id))
            same = ("title", "model", "template", "system")
            assert [again[key] for key in same] == [document[key] for key in same]
            texts = [(m["role"], m["content"], m["status"]) for m in again["messages"]]
            assert texts == [("user", "Hi", "complete"), ("assistant", HOSTILE, "stopped")]
    assert len(store.search("quotes")) == 4


def test_sources_and_calls_come_back(store, tmp_path):
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
    document = to_json(store.chat(chat_id), store.path(chat_id)) | {"id": 70}
    (id,) = stored(store, read_chats(file(tmp_path, document)))
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
def test_sources_and_calls_that_are_no_good_are_named(tmp_path, more, problem):
    turns = [TURNS[0], {**TURNS[1], "content": "Hello", **more}]
    with pytest.raises(ImportingError) as error:
        read_chats(file(tmp_path, {"messages": turns}))
    assert problem in str(error.value)


def test_calls_of_the_user_are_refused(tmp_path):
    path = file(tmp_path, {"messages": [{**TURNS[0], "calls": [GOOD]}, TURNS[1]]})
    with pytest.raises(ImportingError) as error:
        read_chats(path)
    assert str(error.value) == (
        f"{path}, message 1: is from 'user' and has calls, which only replies may have"
    )


def test_training_rows_are_chats_a_line(store, tmp_path):
    rows = [
        {"messages": [{"role": "system", "content": "Be kind."}, *TURNS]},
        {"messages": [*TURNS, {"role": "user", "content": [{"type": "text", "text": "Bye"}]}]},
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    ids = stored(store, read_chats(file(tmp_path, lines)))
    assert store.chat(ids[0]).system == "Be kind."
    assert store.chat(ids[0]).title == "Hi"
    assert to_training_rows(store.chat(ids[0]), store.path(ids[0])) == [rows[0]]
    assert [message.text for message in store.path(ids[1])] == ["Hi", HOSTILE, "Bye"]


ODD = (None, 0, True, 1.5, "x", [], [None], {}, {"x": None})


def texts_or_sentence(path):
    """The texts of a file's only chat, or why there is none."""
    try:
        (chat,) = read_chats(path).chats
    except ImportingError as error:
        return str(error)
    return [message.text for message in chat.messages]


@pytest.mark.parametrize("key", ["messages", "mapping", "current_node", "title", "system", "model"])
@pytest.mark.parametrize("value", ODD)
def test_odd_values_in_a_chat_are_understood_or_told_in_words(tmp_path, key, value):
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
        ('{"messages": []}\n{"messages": [', "line 2: is not valid JSON"),
        ([{"messages": []}, {"title": "x"}], "chat 2 'x': 'messages' is missing, expected a"),
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
        ([{"messages": []}, {"messages": []}], "has no message"),
        pytest.param(f"[{'9' * 5000}]", "is not valid JSON", id="digits"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path, content, words):
    path = file(tmp_path, content)
    with pytest.raises(ImportingError) as caught:
        read_chats(path)
    assert str(caught.value).startswith(str(path))
    assert words in str(caught.value)


def test_files_that_cannot_be_read_are_refused_in_words(tmp_path):
    with pytest.raises(ImportingError, match="cannot be read"):
        read_chats(tmp_path / "missing.json")
    path = tmp_path / "latin.json"
    path.write_bytes(b'{"messages": "\xe4"}')
    with pytest.raises(ImportingError, match="not valid UTF-8"):
        read_chats(path)


def test_chats_are_stored_as_a_whole_or_not_at_all(store, tmp_path, monkeypatch):
    chats = read_chats(
        file(
            tmp_path, [{"messages": TURNS}, {"messages": TURNS[:1]}, {"messages": [*TURNS, *TURNS]}]
        )
    ).chats
    add, calls = store.add_messages, []

    def failing(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 3:
            raise RuntimeError("no more room")
        return add(*arguments, **options)

    monkeypatch.setattr(store, "add_messages", failing)
    with pytest.raises(RuntimeError):
        store_chats(store, chats)
    assert store.chats() == []


def test_what_is_imported_is_indexed_together_and_what_comes_later_is_indexed(
    store, tmp_path, monkeypatch
):
    monkeypatch.setattr("chatapp.dialogue.importing._INDEX_EVERY", 3)
    turns = [[*TURNS] * number for number in range(1, 5)]
    chats = read_chats(file(tmp_path, [{"messages": each} for each in turns])).chats
    stopped = iter([None, KeyboardInterrupt()])

    def stop(done, of):
        if (error := next(stopped)) is not None:
            raise error

    with pytest.raises(KeyboardInterrupt):
        store_chats(store, [replace(chats[0], origin=str(n)) for n in range(80)], stop)
    ids = [id for id, _, _ in store_chats(store, chats)]
    assert {hit.chat_id for hit in store.search("quotes")} == set(ids)
    store.add_message(ids[0], None, "user", "It goes on.")
    assert [hit.chat_id for hit in store.search("goes")] == [ids[0]]
    assert len(store.search("quotes")) == sum(range(1, 5))


def test_a_message_of_a_tool_is_left_out(tmp_path):
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


def test_a_long_import_shows_how_far_it_is_and_can_be_stopped(store, tmp_path):
    turns = [turn for _ in range(400) for turn in TURNS[-2:]]
    path = file(tmp_path, [{"messages": turns, "system": f"{n}"} for n in range(3)])
    read = []
    chats = read_chats(path, progress=lambda done, of: read.append((done, of))).chats
    assert read == [(0, 3), (1, 3), (2, 3)]
    stored = []

    def stop(done, of):
        stored.append((done, of))
        if done >= 1_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store_chats(store, chats, stop)
    assert stored[-1] == (1_000, 3 * len(turns))
    assert store.chats() == []
    (first, *_) = store_chats(store, chats)
    messages = store.path(first.id)
    assert [message.text for message in messages] == [turn["content"] for turn in turns]
    assert [message.sibling for message in messages] == [1] * len(turns)


def test_an_import_asks_the_store_once_a_message(store, tmp_path, monkeypatch):
    statements = []
    rows = store._database.rows

    def counted(statement, *values):
        statements.append(statement)
        return rows(statement, *values)

    turns = [turn for _ in range(100) for turn in TURNS[-2:]]
    chats = read_chats(file(tmp_path, {"messages": turns})).chats
    monkeypatch.setattr(store._database, "rows", counted)
    store_chats(store, chats)
    assert len(statements) < len(turns) + 20


def test_what_came_before_is_not_stored_again_and_goes_on_where_it_has_grown(store, tmp_path):
    more = [*TURNS, {"role": "user", "content": "More"}]
    own = {"id": 70, "created": 1.5, "messages": TURNS}
    for content in (own, [own, own], {"messages": TURNS}):
        store_chats(store, read_chats(file(tmp_path, content)).chats)
    first, second = (chat.id for chat in reversed(store.chats()))
    grown = read_chats(file(tmp_path, [own | {"messages": more}, {"messages": TURNS}])).chats
    assert store_chats(store, grown) == [(first, 1, False), (second, 0, False)]
    assert store_chats(store, grown) == [(first, 0, False), (second, 0, False)]
    assert [message.text for message in store.path(first)] == ["Hi", HOSTILE, "More"]
    # Here and there it went on otherwise: both stay, as branches.
    store.add_message(first, store.path(first)[1].id, "user", "Here")
    there = own | {"messages": [*TURNS, {"role": "user", "content": "There \ud800"}]}
    for added in (1, 0):
        chats = read_chats(file(tmp_path, there)).chats
        assert store_chats(store, chats) == [(first, added, False)]
    texts = [message.text for message in store.tree(first)]
    assert texts == ["Hi", HOSTILE, "More", "Here", "There \ufffd"]
    store.delete_chat(first)
    assert [is_new for _, _, is_new in store_chats(store, chats)] == [True]


def test_a_chat_that_began_here_is_known_in_its_own_export(store, tmp_path):
    chat_id = store.create_chat()
    user = store.add_message(chat_id, None, "user", "Hi")
    reply = store.add_message(chat_id, user.id, "assistant", "Hello.")
    path = file(tmp_path, to_json(store.chat(chat_id), store.path(chat_id)))
    store.edit_reply(reply.id, "Good day.")
    assert store_chats(store, read_chats(path).chats) == [(chat_id, 0, False)]
    store.bin_chat(chat_id)
    ((other, added, is_new),) = store_chats(store, read_chats(path).chats)
    assert (other != chat_id, added, is_new) == (True, 2, True)


def test_what_cannot_be_read_is_left_out_and_named(tmp_path):
    robot = {"title": "R2", "messages": [{"role": "robot", "content": "x"}]}
    path = file(tmp_path, [{"messages": TURNS}, robot, 3, {"messages": TURNS[:1]}])
    read = read_chats(path)
    assert [len(chat.messages) for chat in read.chats] == [2, 1]
    assert [sentence.split(" is ")[0] for sentence in read.faults] == [
        f"{path}, chat 2 'R2', message 1: 'role'",
        f"{path}, chat 3:",
    ]
    lines = "\n".join([json.dumps({"messages": TURNS}), "{", json.dumps({"messages": TURNS[:1]})])
    read = read_chats(file(tmp_path, lines))
    assert (len(read.chats), len(read.faults)) == (2, 1)
    assert read.faults[0].startswith(f"{path}, line 2: is not valid JSON")


def test_odd_ids_are_none(store, tmp_path):
    ids = [(id, 1.5) for id in (True, 2**64, -1, "x", None)] + [(70, float("nan")), (70, 2)]
    rows = [{"id": a, "created": b, "system": f"{a} {b}", "messages": TURNS} for a, b in ids]
    assert len(stored(store, read_chats(file(tmp_path, rows)))) == len(ids)
    assert {store.chat(chat.id).origin.split(":")[0] for chat in store.chats()} == {
        "content",
        "chatapp",
    }
