"""Exported chats hold every word as it was written."""

from chatapp.dialogue.export import to_markdown, to_training_rows

HOSTILE = "# no heading\n```\n<b>[/b] \x1b[2J 你好 \\n"


def chat_of(store, *turns, system=None):
    """A chat of (question, reply, status of the reply)."""
    chat_id = store.create_chat(system=system, model="tiny", template="plain")
    parent = None
    for question, reply, status in turns:
        parent = store.add_message(chat_id, parent, "user", question).id
        added = store.add_message(chat_id, parent, "assistant", reply, status=status)
        parent = added.id
    return store.chat(chat_id), store.path(chat_id)


def test_markdown_reads_as_a_dialogue(store):
    chat, messages = chat_of(store, ("Hi", HOSTILE, "complete"), ("Go", "on and", "stopped"))
    text = to_markdown(chat, messages)
    assert text.startswith("# Go\n\n*")
    assert ", model tiny*\n\n## User\n\nHi\n\n## Assistant\n\n" in text
    assert HOSTILE in text
    assert text.endswith("## User\n\nGo\n\n## Assistant (stopped)\n\non and\n")
    assert "## System" not in text


def test_markdown_shows_the_instructions(store):
    text = to_markdown(*chat_of(store, system="Be brief."))
    assert text.startswith("# Untitled chat\n")
    assert text.endswith("## System\n\nBe brief.\n")


def test_training_rows_hold_complete_exchanges_alone(store):
    chat, messages = chat_of(
        store,
        ("A", "a", "complete"),
        ("B", "", "error"),
        ("C", "c c", "stopped"),
        ("D", "d", "complete"),
        ("E", "  ", "complete"),
        system="Be brief.",
    )
    (row,) = to_training_rows(chat, messages)
    assert row == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "A"},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "D"},
            {"role": "assistant", "content": "d"},
        ]
    }


def test_a_chat_that_teaches_nothing_gives_no_row(store):
    assert to_training_rows(*chat_of(store, ("A", "a", "partial"), system="x")) == []
    assert to_training_rows(*chat_of(store)) == []


def test_a_message_nobody_answered_is_left_out(store):
    chat_id = store.create_chat()
    first = store.add_message(chat_id, None, "user", "lost")
    second = store.add_message(chat_id, first.id, "user", "again")
    store.add_message(chat_id, second.id, "assistant", "yes")
    (row,) = to_training_rows(store.chat(chat_id), store.path(chat_id))
    assert [message["content"] for message in row["messages"]] == ["again", "yes"]
