"""Messages deleted one by one, and brought back with all that belongs to them."""

import pytest

from chatapp.dialogue.store.database import Gone


@pytest.fixture
def chat_id(store):
    """Two replies to one message, the second judged and followed by another exchange."""
    chat_id = store.create_chat()
    user = store.add_message(chat_id, None, "user", "Question")
    first = store.add_message(chat_id, user.id, "assistant", "First walrus")
    second = store.add_message(chat_id, user.id, "assistant", "Second walrus")
    more = store.add_message(chat_id, second.id, "user", "More")
    store.add_message(chat_id, more.id, "assistant", "Another walrus")
    facts = {"model": "m", "template": "plain", "prompt": "p", "sampling": {"top_k": 3}, "seed": 1}
    store.begin_generation(second.id, **facts)
    store.set_correction(second.id, "Better")
    store.add_comparison(first.id, second.id, "right")
    return chat_id


def state(store, chat_id):
    """All there is of a chat."""
    [summary] = store.chats()
    return (
        store.tree(chat_id),
        store.path(chat_id),
        store.generations(chat_id),
        store.feedback(chat_id),
        store.comparisons(chat_id),
        summary.messages,
        [hit.message_id for hit in store.search("walrus")],
    )


@pytest.mark.parametrize(
    ("message_id", "path", "count"),
    [(1, [], 5), (2, [1, 3, 4, 5], 1), (3, [1, 2], 3), (4, [1, 3], 2), (5, [1, 3, 4], 1)],
)
def test_a_message_is_deleted_and_brought_back(store, chat_id, message_id, path, count):
    before = state(store, chat_id)
    deleted = store.delete_message(message_id)
    assert deleted.count == count
    assert [message.id for message in store.path(chat_id)] == path
    assert store.chats()[0].messages == len(store.tree(chat_id)) == 5 - count
    store.restore_messages(deleted)
    assert state(store, chat_id) == before


def test_what_cannot_be_brought_back_is_said(store, chat_id):
    deleted = store.delete_message(5)
    store.delete_message(4)
    with pytest.raises(Gone):
        store.restore_messages(deleted)
    assert len(store.tree(chat_id)) == 3
    store.bin_chat(chat_id)
    with pytest.raises(Gone, match="has been deleted"):
        store.delete_message(3)
