"""Chats of ChatGPT, Claude, LibreChat and open-webui are read along their current path."""

import json
import time

import pytest

from chatapp.dialogue.importing import ImportingError, read_chats, store_chats

HOSTILE = "[/b] \x1b[2J \u2028 <|im_end|>"


def file(tmp_path, content):
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps(content))
    return path


def turns(tmp_path, content):
    """The roles and texts of a file's only chat."""
    (chat,) = read_chats(file(tmp_path, content)).chats
    return [(message.role, message.text) for message in chat.messages]


# ChatGPT


def node(parent, role, *parts, **more):
    """A node of ChatGPT's tree."""
    message = role and {"author": {"role": role}, "content": {"parts": list(parts)}, **more}
    return {"parent": parent, "message": message}


TREE = {
    "a": node(None, None),
    "b": node("a", "system", ""),
    "hidden": node("b", "user", content={"content_type": "user_editable_context"}),
    "told": node(
        "hidden", "user", "I am 40.", metadata={"is_visually_hidden_from_conversation": True}
    ),
    "c": node("told", "user", "Tea?"),
    "d": node("c", "assistant", "I look it up."),
    "e": node("d", "tool", "results"),
    "thought": node("e", "assistant", content={"thoughts": [{"content": "They ask."}]}),
    "f": node("thought", "assistant", "Yes.", {"image": 1}),
    "other": node("c", "assistant", "No.", create_time=1.5),
}


def test_chatgpts_export_is_followed_to_its_current_node(store, tmp_path):
    document = {"title": "Tea", "current_node": "f", "mapping": TREE}
    ((id, _, _),) = store_chats(store, read_chats(file(tmp_path, [document])).chats)
    assert store.chat(id).title == "Tea"
    question, reply = store.path(id)
    assert (question.text, reply.text) == ("Tea?", "I look it up.\n\nYes.")
    assert reply.thoughts == "They ask."


@pytest.mark.parametrize("current", [{}, {"current_node": None}, {"current_node": HOSTILE}])
def test_without_a_current_node_the_last_leaf_is_taken(tmp_path, current):
    whole = {"mapping": TREE, "current_node": "d"}
    read = read_chats(file(tmp_path, [whole, {"mapping": TREE, **current}, {"title": "x"}]))
    assert [chat.messages[-1].text for chat in read.chats] == ["I look it up.", "No."]
    assert [": 'mapping' has no node" in chat.note for chat in read.chats if chat.note] == [
        True
    ] * any(current.values())
    (fault,) = read.faults
    assert "chat 3 'x': 'messages' is missing" in fault


def test_chats_without_a_message_are_left_out_and_counted(tmp_path):
    tree = {"a": node(None, None), "b": node("a", "user", "Hi")}
    documents = [
        {"mapping": {}, "current_node": None},
        {"mapping": tree, "current_node": "b"},
        {"mapping": tree, "current_node": "a"},
        {"messages": []},
    ]
    read = read_chats(file(tmp_path, documents))
    assert [chat.messages[0].text for chat in read.chats] == ["Hi"]
    assert read.empty == 3


def test_pictures_speech_and_files_of_chatgpt_keep_their_turns(tmp_path):
    sent = {"attachments": [{"name": "notes.txt", "id": "file-1"}, {"name": 3}, None]}
    tree = {
        "a": node(None, "user", {"content_type": "image_asset_pointer"}),
        "b": node("a", "assistant", "", "A walrus."),
        "c": node("b", "user", {"content_type": "audio_transcription", "text": "Sure?"}),
        "d": node("c", "assistant", "Yes."),
        "e": node("d", "user", "", metadata=sent),
    }
    texts = [text for _, text in turns(tmp_path, {"mapping": tree, "current_node": "e"})]
    assert texts == ["", "A walrus.", "Sure?", "Yes.", "[file: notes.txt]"]


def test_a_chat_of_chatgpt_that_the_assistant_begins(tmp_path):
    tree = {"a": node(None, "assistant", "Welcome."), "b": node("a", "user", "Hi")}
    begun = [("user", ""), ("assistant", "Welcome."), ("user", "Hi")]
    assert turns(tmp_path, [{"mapping": tree, "current_node": "b"}]) == begun


# Claude

CLAUDE = {
    "uuid": "0c-1",
    "name": "Tea",
    "chat_messages": [
        {
            "sender": "human",
            "text": "Tea?",
            "content": [{"type": "text", "text": "Tea?"}],
            "attachments": [{"file_name": "leaf.txt", "extracted_content": "green"}],
            "files": [{"file_name": "leaf.txt"}, {"file_name": "cup.png"}],
        },
        {
            "sender": "assistant",
            "text": "This block is not supported.",
            "content": [
                {"type": "thinking", "thinking": "They ask."},
                {"type": "tool_use", "name": "search", "input": {}},
                {"type": "tool_result", "content": [{"type": "text", "text": "a result"}]},
                {"type": "text", "text": "Yes."},
                {"type": "text", "text": "Do."},
            ],
        },
        {"sender": "human", "text": HOSTILE},
    ],
}


def test_claudes_export_is_read_with_its_parts_and_names_of_files(store, tmp_path):
    (chat,) = read_chats(file(tmp_path, [CLAUDE])).chats
    assert (chat.title, chat.origin) == ("Tea", "Claude:0c-1")
    assert [(message.role, message.text, message.thoughts) for message in chat.messages] == [
        ("user", "Tea?\n\n[file: leaf.txt]\n\n[file: cup.png]", ""),
        ("assistant", "Yes.\n\nDo.", "They ask."),
        ("user", HOSTILE, ""),
    ]
    messages = [*CLAUDE["chat_messages"], {"sender": "assistant", "text": "More."}]
    (first,) = store_chats(store, [chat])
    grown = read_chats(file(tmp_path, [CLAUDE | {"chat_messages": messages}])).chats
    assert store_chats(store, grown) == [(first.id, 1, False)]


# LibreChat


def row(name, parent, text, by_user, **more):
    """A message of LibreChat."""
    place = {"messageId": name, "parentMessageId": parent or "0000-00", "isCreatedByUser": by_user}
    return {**place, "text": text, **more}


LIBRE_ROWS = [
    row("a", None, "Tea?", True, files=[{"filename": "leaf.txt"}]),
    row("b", "a", "No.", False),
    row(
        "c",
        "a",
        "",
        False,
        content=[{"type": "think", "think": "Hm."}, {"type": "text", "text": {"value": "Yes."}}],
        unfinished=True,
    ),
]
LIBRE_CHILDREN = [LIBRE_ROWS[0] | {"children": LIBRE_ROWS[1:]}]


@pytest.mark.parametrize("rows", [LIBRE_ROWS, LIBRE_CHILDREN], ids=["in a row", "within"])
@pytest.mark.parametrize("key", ["messages", "messagesTree"])
def test_librechats_export_is_read_to_its_last_message(tmp_path, rows, key):
    document = {"conversationId": "1", "options": {"promptPrefix": "Be kind."}, key: rows}
    (chat,) = read_chats(file(tmp_path, document)).chats
    assert (chat.system, chat.origin) == ("Be kind.", "LibreChat:1")
    question, reply = chat.messages
    assert question.text == "Tea?\n\n[file: leaf.txt]"
    assert (reply.text, reply.thoughts, reply.status) == ("Yes.", "Hm.", "stopped")


# open-webui


def webui(*rows, current=None):
    history = {"messages": {str(n): row for n, row in enumerate(rows)}, "currentId": current}
    chat = {"title": "Tea", "params": {"system": "Be kind."}, "history": history}
    return {"id": "w-1", "title": "Tea", "chat": chat}


THOUGHT = (
    '<details type="reasoning" done="true">\n<summary>Thought for 3 seconds</summary>\n'
    "&gt; They ask.\n&gt; So: 1 &lt; 2\n</details>\n"
    '<details type="tool_calls"><summary>Done</summary>18 degrees</details>Yes. <details>'
)


def test_open_webuis_export_is_read_along_its_current_path(tmp_path):
    rows = (
        {"parentId": None, "role": "user", "content": "Tea?", "files": [{"name": "leaf.txt"}]},
        {"parentId": "0", "role": "assistant", "content": THOUGHT},
        {"parentId": "0", "role": "assistant", "content": "No."},
    )
    (chat,) = read_chats(file(tmp_path, [webui(*rows, current="1")])).chats
    assert (chat.title, chat.system, chat.origin) == ("Tea", "Be kind.", "open-webui:w-1")
    question, reply = chat.messages
    assert question.text == "Tea?\n\n[file: leaf.txt]"
    assert (reply.text, reply.thoughts) == ("Yes. <details>", "They ask.\nSo: 1 < 2")
    assert turns(tmp_path, webui(*rows))[-1] == ("assistant", "No.")


def test_a_reply_of_openings_alone_is_read_in_a_moment(tmp_path):
    text = '<details type="reasoning">' * 100_000
    question = {"parentId": None, "role": "user", "content": text}
    began = time.monotonic()
    read = turns(tmp_path, webui(question, {"parentId": "0", "role": "assistant", "content": text}))
    assert [len(each) for _, each in read] == [len(text)] * 2
    assert time.monotonic() - began < 5


# What is odd

ODD = (None, 0, True, 1.5, "x", [], [None], {}, {"x": None}, [[]], [{}])
FORMS = {
    "ChatGPT": {"mapping": TREE, "current_node": "f"},
    "Claude": CLAUDE,
    "LibreChat": {"conversationId": "1", "messages": LIBRE_CHILDREN, "options": {}},
    "open-webui": webui(
        {"parentId": None, "role": "user", "content": "Tea?", "files": [{"name": "leaf.txt"}]},
        {"parentId": "0", "role": "assistant", "content": THOUGHT},
    ),
}


def title_or_sentence(path):
    """The title of a file's only chat, or why there is none."""
    try:
        (chat,) = read_chats(path).chats
    except ImportingError as error:
        return str(error)
    return chat.title or "chat"


def places(value):
    """Every list or object in a document, with each key that it has."""
    below = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, part in below:
        found.append((value, key))
        found += places(part) if isinstance(part, dict | list) else []
    return found


@pytest.mark.parametrize("form", FORMS)
def test_odd_values_are_understood_or_told_in_words(tmp_path, form):
    document = json.loads(json.dumps(FORMS[form]))
    whole = read_chats(file(tmp_path, document)).chats
    for holder, key in places(document):
        kept = holder[key]
        for value in ODD:
            holder[key] = value
            path = file(tmp_path, document)
            assert title_or_sentence(path).startswith(("Tea", "x", "chat", str(path)))
        holder[key] = kept
    assert read_chats(file(tmp_path, document)).chats == whole


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"mapping": {"a": {"parent": "a"}}, "current_node": "a"}, "a cycle at node 'a'"),
        ({"mapping": {"a": node("b", "user", "x"), "b": node("a", "user", "y")}}, "a cycle"),
        ({"mapping": {"a": node("gone", "user", "Hi")}, "current_node": "a"}, "no node 'gone'"),
        ({"mapping": []}, "'mapping' is a list, expected an object"),
        ({"mapping": {"a": {"message": "x"}}, "current_node": "a"}, "is the string 'x', expected"),
        ({"mapping": {}, "current_node": "a"}, "has no message"),
        ({"chat_messages": {}}, "'chat_messages' is a table, expected a list of messages"),
        ({"chat_messages": [{"sender": "robot"}]}, "message 1: 'sender' is the string 'robot'"),
        ({"chat_messages": [{"sender": "human", "text": 3}]}, "'text' is the number 3"),
        ({"conversationId": "1"}, "'messages' is missing, expected a list of messages"),
        ({"conversationId": "1", "messages": [{"text": "x"}]}, "'isCreatedByUser' is missing"),
        ({"chat": {}}, "'chat' has no 'history'"),
    ],
)
def test_mistakes_of_others_are_named_with_their_place(tmp_path, document, words):
    path = file(tmp_path, document)
    with pytest.raises(ImportingError) as caught:
        read_chats(path)
    assert str(caught.value).startswith(str(path))
    assert words in str(caught.value)
